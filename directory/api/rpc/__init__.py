"""What every RPC handler runs in: threads, bounds, deadlines, authentication and errors."""
