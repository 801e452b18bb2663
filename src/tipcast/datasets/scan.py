"""Earlier name of ``listing``, for datasets of users that import ``Listing`` from here."""

from tipcast.datasets.listing import Listing as Listing
