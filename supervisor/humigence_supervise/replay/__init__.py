"""`replay`: what the present policy decides on an old run, or if a logged failure came back."""
