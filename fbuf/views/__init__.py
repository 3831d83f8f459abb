"""Views: what a drawn row turns into. One file a view."""

from fbuf.views._protocol import Reading as Reading
from fbuf.views._protocol import View as View
from fbuf.views.item import Item as Item
