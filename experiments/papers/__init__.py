"""The papers' tables and figures as data: what is trained, what is read off, and what was printed."""
