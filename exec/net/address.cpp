#include "exec/net/address.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <string_view>
#include <system_error>

namespace isobar::exec {

namespace {

/// "" when the system gives no name.
std::string in_numbers(const sockaddr* address, socklen_t length)
{
  std::array<char, NI_MAXHOST> text = {};
  const int error = ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return "";
  // What calls over IPv4 on a socket of IPv6 is called back over IPv4.
  constexpr std::string_view mapped = "::ffff:";
  const std::string_view name = text.data();
  return std::string(name.starts_with(mapped) ? name.substr(mapped.size()) : name);
}

template <typename Ask>
std::string end_of(int socket, Ask ask)
{
  sockaddr_storage storage = {};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  if (ask(socket, address, &length) != 0) {
    throw EnvironmentError("a connection without an address: " + std::generic_category().message(errno));
  }
  return in_numbers(address, length);
}

std::shared_ptr<addrinfo> look_up(const std::string& host, int flags)
{
  addrinfo wanted = {};
  wanted.ai_flags = flags;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return nullptr;
  return {found, ::freeaddrinfo};
}

}  // namespace

std::string local_address(int socket)
{
  return end_of(socket, ::getsockname);
}

std::string peer_address(int socket)
{
  return end_of(socket, ::getpeername);
}

std::string address_of_host(const std::string& host)
{
  const auto found = look_up(host, 0);
  return found ? in_numbers(found->ai_addr, found->ai_addrlen) : "";
}

std::string host_name()
{
  std::array<char, HOST_NAME_MAX + 1> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_host_name(const std::string& host)
{
  return !look_up(host, AI_NUMERICHOST);
}

}  // namespace isobar::exec
