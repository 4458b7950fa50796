"""The append-only record of a campaign: events, their fold, and the file."""
