#include "exec/net/address.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>

namespace isobar::exec {

namespace {

/// "" when the system cannot write the address.
std::string numeric_text(const sockaddr* address, socklen_t length)
{
  std::array<char, NI_MAXHOST> text = {};
  const int error = ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return "";
  // An IPv4 peer of an IPv6 socket must be connected to over IPv4.
  constexpr std::string_view mapped = "::ffff:";
  const std::string_view name = text.data();
  return std::string(name.starts_with(mapped) ? name.substr(mapped.size()) : name);
}

/// `query`: getsockname or getpeername.
template <typename Query>
std::string address_of(int socket, Query query)
{
  sockaddr_storage storage = {};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  if (query(socket, address, &length) != 0) {
    throw EnvironmentError("socket without an address: " + std::generic_category().message(errno));
  }
  return numeric_text(address, length);
}

std::shared_ptr<addrinfo> resolve(const std::string& host, int flags)
{
  addrinfo hints = {};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return nullptr;
  return {found, ::freeaddrinfo};
}

}  // namespace

std::string local_address(int socket)
{
  return address_of(socket, ::getsockname);
}

std::string peer_address(int socket)
{
  return address_of(socket, ::getpeername);
}

std::string address_of_host(const std::string& host)
{
  const auto found = resolve(host, 0);
  return found ? numeric_text(found->ai_addr, found->ai_addrlen) : "";
}

bool resolves_by(Clock::time_point deadline, const std::string& host)
{
  constexpr std::chrono::milliseconds pause(200);
  while (address_of_host(host).empty()) {
    throw_if_interrupted();
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

std::string host_name()
{
  std::array<char, HOST_NAME_MAX + 1> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_host_name(const std::string& host)
{
  return !resolve(host, AI_NUMERICHOST);
}

}  // namespace isobar::exec
