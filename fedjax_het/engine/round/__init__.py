"""One round of an algorithm as a pure function: the client's part, the server's part, and participation."""
