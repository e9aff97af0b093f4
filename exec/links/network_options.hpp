#pragma once

#include "exec/links/tcp_connect.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library has it
class App;
}  // namespace CLI

namespace isobar::exec {

/// Options by which ranks on several machines connect.
struct NetworkOptions {
  std::string secret_file;  ///< "": the secret is in the environment
  std::string bind;         ///< an address or an interface; "": the rank's own entry of --ranks
  bool plain_text = false;
  bool tls = false;
};

/// Adds --secret-file, --bind, --tls and --plain-text.
void add_network_options(CLI::App& command, NetworkOptions& options);

/// For commands without connections to other machines. @throws InputError naming the first of the options that is
/// given.
void refuse_network_options(const NetworkOptions& options);

/// True for "localhost" and addresses such as 127.0.0.1 and ::1. Looks no other names up, so that all ranks get the
/// same result.
bool is_loopback(const std::string& host);

/// Address to listen on, given an address or the name of an interface. Among several addresses of an interface: `own`
/// if present, else the first, IPv4 before IPv6. @throws InputError when it is neither, or has no address.
std::string bind_address_of(const std::string& address_or_interface, const std::string& own);

/// @throws InputError when --bind opens a port to other machines although `host` is a loopback address. `who` and
/// `option`, for the message: "the master" has `host` from "--master".
void refuse_open_bind(const NetworkOptions& options, const std::string& host, const std::string& who,
                      const std::string& option);

/// The secret that the ranks share. Wipes the environment variable in any case.
/// @throws InputError when there is no secret, and as secret_from_file does.
std::shared_ptr<const Secret> secret_of(const NetworkOptions& options);
/// True when connections between these endpoints are encrypted: unless all are on the loopback interface, or as the
/// options say.
bool uses_tls(const NetworkOptions& options, const std::vector<Endpoint>& endpoints);
/// Secret, TLS and listening address of rank `rank` of `ranks`. @throws as bind_address_of and refuse_open_bind do.
TcpOptions tcp_options_of(const NetworkOptions& options, std::shared_ptr<const Secret> secret, std::size_t rank,
                          const std::vector<Endpoint>& ranks);
/// The same for ranks that this process starts on this machine; they share a random secret.
/// @throws InputError for options that do not apply to them.
TcpOptions tcp_options_of_own_ranks(const NetworkOptions& options);

}  // namespace isobar::exec
