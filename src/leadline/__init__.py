"""Leadline finds how deep an LLM server should speculate, for your traffic, and gives the service back."""

__version__ = "0.1.0"
