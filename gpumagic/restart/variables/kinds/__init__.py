"""How objects of some classes are pickled: cloudpickle, torch and NumPy leave something out."""
