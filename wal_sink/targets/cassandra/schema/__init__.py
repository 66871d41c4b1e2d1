"""The table: read, compared with the DataFrame, and watched."""
