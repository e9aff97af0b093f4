#include "exec/launch/rendezvous_messages.hpp"

#include "core/errors.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <utility>

namespace isobar::exec::rendezvous {

namespace {

using Json = nlohmann::ordered_json;

constexpr int protocol = 3;  ///< version; ranks of other versions are rejected

}  // namespace

std::string role_of(const RendezvousOptions& options, std::size_t rank, Way way)
{
  return fmt::format("isobar {}: rank {} of {}{}, {}", protocol, rank, options.ranks, options.tls ? " with TLS" : "",
                     way == Way::Up ? "up" : "down");
}

std::unique_ptr<TcpLink> link_over(Connection connection, Way way, std::size_t rank, std::size_t self)
{
  const auto channel = static_cast<std::uint32_t>(way);
  const LinkName name = way == Way::Up ? LinkName{rank, 0, channel} : LinkName{0, rank, channel};
  std::vector<Connection> connections;
  connections.push_back(std::move(connection));
  return std::make_unique<TcpLink>(name, self, "rendezvous", std::move(connections));
}

double wall_clock()
{
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Decision::throw_if_refused() const
{
  if (reasons.empty()) return;
  if (!is_the_machines_fault) throw InputError(reasons);
  throw EnvironmentError(reasons.front());
}

std::string decision_to_json(const Decision& decision)
{
  Json endpoints = Json::array();
  for (const auto& endpoint : decision.endpoints)
    endpoints.push_back({{"host", endpoint.host}, {"port", endpoint.port}});
  const Json json = {{"reasons", decision.reasons},
                     {"is_the_machines_fault", decision.is_the_machines_fault},
                     {"device_of_rank", decision.device_of_rank},
                     {"endpoints", std::move(endpoints)}};
  return json_line(json);
}

Decision decision_from_json(const std::string& text)
{
  try {
    const Json json = Json::parse(text);
    Decision decision = {.reasons = json.at("reasons"),
                         .is_the_machines_fault = json.at("is_the_machines_fault"),
                         .device_of_rank = json.at("device_of_rank"),
                         .endpoints = {}};
    for (const auto& endpoint : json.at("endpoints")) {
      decision.endpoints.push_back({endpoint.at("host"), endpoint.at("port")});
    }
    return decision;
  } catch (const Json::exception& error) {
    throw EnvironmentError(fmt::format("rank 0 sent a malformed decision: {}", shown(error.what(), 200)));
  }
}

}  // namespace isobar::exec::rendezvous
