#pragma once

#include "exec/net/tcp_connect.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library has it
class App;
}  // namespace CLI

namespace isobar::exec {

/// How ranks on several machines meet, as the user says it.
struct NetworkOptions {
  std::string secret_file;  ///< "": the secret is in the environment
  std::string bind;         ///< an address or an interface; "": the rank's own entry of --ranks
  bool plain_text = false;
  bool tls = false;
};

/// --secret-file, --bind, --tls and --plain-text.
void add_network_options(CLI::App& command, NetworkOptions& options);

/// For work with no connection to other machines. @throws InputError naming the first option that is said all the same.
void refuse_network_options(const NetworkOptions& options);

/// True of "localhost" and of addresses such as 127.0.0.1 and ::1. Of other names nothing is looked up, so that all
/// ranks find the same.
bool is_loopback(const std::string& host);

/// The address to listen on for an address or the name of an interface, which may have several: `own` if it is among
/// them, else the first, IPv4 before IPv6. @throws InputError when it is neither, or has no address.
std::string bind_address_of(const std::string& address_or_interface, const std::string& own);

/// @throws InputError when --bind opens a port to other machines for a rank whose place this machine alone reaches.
/// `who` has it by `option`: "the master", "--master".
void refuse_open_bind(const NetworkOptions& options, const std::string& place, const std::string& who,
                      const std::string& option);

/// The secret that the ranks share; the environment variable is wiped in any case.
/// @throws InputError when there is none, and as secret_from_file does.
std::shared_ptr<const Secret> secret_of(const NetworkOptions& options);
/// Whether connections between these places are encrypted: unless all are on the loopback interface, or the user says
/// otherwise.
bool uses_tls(const NetworkOptions& options, const std::vector<Endpoint>& places);
/// What rank `rank` of `ranks` connects with: secret, TLS, and where it listens. @throws as bind_address_of does.
TcpOptions tcp_options_of(const NetworkOptions& options, std::shared_ptr<const Secret> secret, std::size_t rank,
                          const std::vector<Endpoint>& ranks);
/// The same for ranks that this process starts on this machine: they share a secret of their own.
/// @throws InputError for options that mean nothing to them.
TcpOptions tcp_options_of_own_ranks(const NetworkOptions& options);

}  // namespace isobar::exec
