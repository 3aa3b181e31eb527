"""A method here beside the same method in another library: at which step do the two part?"""
