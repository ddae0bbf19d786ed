"""Lists, compares and reports recorded runs; reads run folders and never changes them."""
