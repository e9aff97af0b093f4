#include "exec/links/text_message.hpp"

#include "core/errors.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace isobar::exec {

void send_text(TcpLink& link, std::string_view text, Seconds deadline)
{
  const std::uint64_t length = text.size();
  link.send(std::as_bytes(std::span(&length, 1)), std::array{std::as_bytes(std::span(text))}, deadline);
}

std::string receive_text(TcpLink& link, Seconds deadline)
{
  std::string text;
  const auto room = [&](TcpLink::Bytes header) {
    constexpr std::uint64_t longest = std::uint64_t{1} << 32;
    std::uint64_t length = 0;
    if (header.size() == sizeof(length)) std::memcpy(&length, header.data(), sizeof(length));
    if (header.size() != sizeof(length) || length > longest) {
      throw EnvironmentError("malformed header of a text message");
    }
    text.resize(length);
    return std::vector{std::as_writable_bytes(std::span(text))};
  };
  link.receive(room, deadline);
  return text;
}

}  // namespace isobar::exec
