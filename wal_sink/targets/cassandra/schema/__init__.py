"""The table's schema: read, compared with the DataFrame, agreed on in a plan, and watched for drift."""
