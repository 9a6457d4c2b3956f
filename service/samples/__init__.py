"""Images to try the service with; README.md beside this file says where each is from."""
