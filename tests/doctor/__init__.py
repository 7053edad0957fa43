"""The doctor, the line below a failure, CPU threads, the command line."""
