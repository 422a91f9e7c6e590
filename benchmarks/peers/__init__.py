"""rt beside other systems that keep messages: same work, same machine, in turn."""
