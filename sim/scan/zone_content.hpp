#pragma once

namespace pugi {
class xml_node;
}

namespace isobar::sim {

class ElementReader;

/// Adds a fault for the first element of a zone that SimGrid's DTD does not allow in its place: a zone has props, then
/// either hosts and routers or zones, clusters and peers, with links among them, and last the routes between these.
/// SimGrid itself only says that a tag is not allowed.
void check_zone_content(const pugi::xml_node& zone, ElementReader& reader);

}  // namespace isobar::sim
