"""The bodies of every request and response this package knows, by the name Kafka gives them.

Each module declares one family of APIs and is named once, here. The words that messages are declared with come along;
their home is `minibroker_protocol.fields`.
"""

from minibroker_protocol.messages.acls import *
from minibroker_protocol.messages.api_versions import *
from minibroker_protocol.messages.cluster import *
from minibroker_protocol.messages.configs import *
from minibroker_protocol.messages.consumer_groups import *
from minibroker_protocol.messages.credentials import *
from minibroker_protocol.messages.fetch import *
from minibroker_protocol.messages.groups import *
from minibroker_protocol.messages.inter_broker import *
from minibroker_protocol.messages.metadata import *
from minibroker_protocol.messages.offsets import *
from minibroker_protocol.messages.produce import *
from minibroker_protocol.messages.sasl import *
from minibroker_protocol.messages.share import *
from minibroker_protocol.messages.topics import *
from minibroker_protocol.messages.transactions import *
