"""What users of Mainspring import: no server dependencies."""
