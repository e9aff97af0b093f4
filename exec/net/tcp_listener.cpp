#include "exec/net/tcp_listener.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <charconv>
#include <system_error>

namespace isobar::exec {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

tcp::endpoint address_of(const Descriptor& socket)
{
  tcp::endpoint address;
  auto length = static_cast<socklen_t>(address.capacity());
  if (::getsockname(socket.number(), address.data(), &length) != 0) {
    throw EnvironmentError(
        fmt::format("descriptor {} is not a socket: {}", socket.number(), std::generic_category().message(errno)));
  }
  address.resize(length);
  return address;
}

}  // namespace

Endpoint endpoint_from_text(const std::string& option, const std::string& text)
{
  const auto colon = text.rfind(':');
  const auto fault = [&] {
    return InputError(option, in_quotes(text) + " is not an address; write host:port, such as 10.0.0.2:29500");
  };
  if (colon == std::string::npos || colon == 0) throw fault();
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) throw fault();
  return {host, port};
}

std::string text_of(const Endpoint& endpoint)
{
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{0}{1}{2}:{3}", is_ipv6 ? "[" : "", shown(endpoint.host), is_ipv6 ? "]" : "", endpoint.port);
}

TcpListener::TcpListener(const Endpoint& endpoint)
{
  asio::io_context context;
  error_code error;
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::numeric_service, error);
  tcp::acceptor acceptor(context);
  const auto attempt = [&](auto step) {
    if (!error) step();
  };
  attempt([&] { acceptor.open(found->endpoint().protocol(), error); });
  // Lingering connections of an earlier run do not occupy the port; only a listening process does.
  attempt([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  attempt([&] { acceptor.bind(found->endpoint(), error); });
  attempt([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
  if (error) {
    const std::string place = endpoint.port == 0 ? shown(endpoint.host) : text_of(endpoint);
    throw EnvironmentError(fmt::format("cannot listen on {}: {}", place, error.message()));
  }
  socket_ = Descriptor(acceptor.release());
  ::fcntl(socket_.number(), F_SETFD, FD_CLOEXEC);
}

TcpListener::TcpListener(Descriptor socket) : socket_(std::move(socket))
{
  ::fcntl(socket_.number(), F_SETFD, FD_CLOEXEC);
}

std::uint16_t TcpListener::port() const
{
  return address_of(socket_).port();
}

bool TcpListener::is_ipv6() const
{
  return address_of(socket_).protocol() == tcp::v6();
}

}  // namespace isobar::exec
