"""Lists of tasks: which index leads to what a filter wants, page by page."""
