"""One launch asked many times: on every GPU of the catalogue (`where`), of every release (`which`)."""
