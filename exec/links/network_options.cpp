#include "exec/links/network_options.hpp"

#include "core/base/command_options.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <ifaddrs.h>
#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace isobar::exec {

namespace {

namespace asio = boost::asio;

struct Interfaces {
  std::set<std::string> names;
  std::vector<std::string> addresses;  ///< of one interface, IPv4 first
};

std::optional<asio::ip::address> address_from(const std::string& text)
{
  boost::system::error_code error;
  const auto address = asio::ip::make_address(text, error);
  return error ? std::nullopt : std::optional(address);
}

/// nullopt for link-local IPv6 addresses, which are ambiguous without an interface.
std::optional<std::string> address_text(const sockaddr& address)
{
  const bool is_ipv6 = address.sa_family == AF_INET6;
  asio::ip::tcp::endpoint endpoint(is_ipv6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), 0);
  std::memcpy(endpoint.data(), &address, endpoint.size());
  if (is_ipv6 && endpoint.address().to_v6().is_link_local()) return std::nullopt;
  return endpoint.address().to_string();
}

Interfaces interfaces_of_machine(const std::string& wanted)
{
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw EnvironmentError("cannot list the network interfaces: " + std::generic_category().message(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  Interfaces found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      found.names.insert(entry->ifa_name);
      if (entry->ifa_name != wanted || entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (auto address = address_text(*entry->ifa_addr)) found.addresses.push_back(std::move(*address));
    }
  }
  return found;
}

}  // namespace

void add_network_options(CLI::App& command, NetworkOptions& options)
{
  constexpr auto group = "Network";
  add_file(command, "--secret-file", options.secret_file,
           "with --rank or a launcher: file with the secret that all ranks share, readable only by its owner (default: "
           "the environment variable ISOBAR_SECRET)")
      ->group(group);
  command
      .add_option("--bind", options.bind,
                  "with --rank or a launcher: address or interface to listen on (default: this rank's address in "
                  "--ranks; without --ranks, the address from which it reaches rank 0)")
      ->group(group);
  auto* tls = command.add_flag("--tls", options.tls, "encrypt connections on the loopback interface too")->group(group);
  command.add_flag("--plain-text", options.plain_text, "encrypt no connections, not even between machines")
      ->group(group)
      ->excludes(tls);
}

void refuse_network_options(const NetworkOptions& options)
{
  const auto refuse = [](bool is_given, const char* name) {
    if (is_given) throw InputError(name, "applies only to ranks that are started one by one; use it with --rank");
  };
  refuse(!options.secret_file.empty(), "--secret-file");
  refuse(!options.bind.empty(), "--bind");
  refuse(options.tls, "--tls");
  refuse(options.plain_text, "--plain-text");
}

bool is_loopback(const std::string& host)
{
  const auto address = address_from(host);
  return address ? address->is_loopback() : host == "localhost";
}

std::string bind_address_of(const std::string& address_or_interface, const std::string& own)
{
  if (address_from(address_or_interface)) return address_or_interface;
  const auto found = interfaces_of_machine(address_or_interface);
  if (!found.addresses.empty()) {
    const bool has_own = std::find(found.addresses.begin(), found.addresses.end(), own) != found.addresses.end();
    return has_own ? own : found.addresses.front();
  }
  if (found.names.contains(address_or_interface)) {
    throw InputError("--bind", fmt::format("interface {} has no address", shown(address_or_interface)));
  }
  std::string names;
  for (const auto& name : found.names) names += (names.empty() ? "" : ", ") + shown(name);
  throw InputError("--bind", fmt::format("{} is neither an address nor an interface of this machine, which has {}",
                                         in_quotes(address_or_interface), names));
}

void refuse_open_bind(const NetworkOptions& options, const std::string& host, const std::string& who,
                      const std::string& option)
{
  if (options.bind.empty() || !is_loopback(host) || is_loopback(bind_address_of(options.bind, host))) return;
  throw InputError("--bind", fmt::format("{} is open to other machines, but {} is at {}, which only this machine "
                                         "reaches; change the address in {}, or omit --bind",
                                         shown(options.bind), who, shown(host), option));
}

std::shared_ptr<const Secret> secret_of(const NetworkOptions& options)
{
  keep_secret_of_environment();  // wiped even if a file has the secret
  if (!options.secret_file.empty()) return secret_from_file(options.secret_file);
  if (auto secret = secret_from_environment()) return secret;
  throw InputError(fmt::format(
      "no secret: give --secret-file FILE or the environment variable {}, the same to all ranks; create one with: "
      "(umask 077; head -c 32 /dev/urandom | base64 > FILE)",
      Secret::variable));
}

bool uses_tls(const NetworkOptions& options, const std::vector<Endpoint>& endpoints)
{
  const auto is_local = [](const Endpoint& endpoint) { return is_loopback(endpoint.host); };
  return options.tls || (!options.plain_text && !std::all_of(endpoints.begin(), endpoints.end(), is_local));
}

TcpOptions tcp_options_of(const NetworkOptions& options, std::shared_ptr<const Secret> secret, std::size_t rank,
                          const std::vector<Endpoint>& ranks)
{
  TcpOptions tcp;
  tcp.secret = std::move(secret);
  tcp.tls = uses_tls(options, ranks);
  if (options.bind.empty()) return tcp;
  const auto& own = ranks[rank].host;
  refuse_open_bind(options, own, fmt::format("rank {}", rank), "--ranks");
  tcp.bind_address = bind_address_of(options.bind, own);
  return tcp;
}

TcpOptions tcp_options_of_own_ranks(const NetworkOptions& options)
{
  if (!options.secret_file.empty()) {
    throw InputError("--secret-file", "requires --rank; the ranks of --spawn get a random secret");
  }
  if (!options.bind.empty()) {
    throw InputError("--bind", "requires --rank; the ranks of --spawn listen on the loopback interface");
  }
  TcpOptions tcp;
  tcp.secret = random_secret();
  tcp.tls = options.tls;
  return tcp;
}

}  // namespace isobar::exec
