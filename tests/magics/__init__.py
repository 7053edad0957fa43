"""`gpumagic.magics`: the extension, and the magics as they are typed."""
