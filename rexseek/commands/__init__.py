"""The subcommands of `rexseek`."""
