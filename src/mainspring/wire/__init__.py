"""Types of the public API: the server checks and documents with them, the SDK decodes with them."""
