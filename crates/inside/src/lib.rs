//! What a node looks like inside, from what its cluster says of it.
