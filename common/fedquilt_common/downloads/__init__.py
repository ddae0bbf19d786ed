"""Downloads that resume, and archives that are unpacked safely."""
