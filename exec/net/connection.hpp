#pragma once

#include "exec/net/tls.hpp"

#include <memory>
#include <utility>

namespace isobar::exec {

/// An open file descriptor, closed on destruction.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept
  {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  /// Transfers the descriptor to the caller, which closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// A connected socket, encrypted if `tls` is set.
struct Connection {
  Connection() = default;
  Connection(Descriptor connected, std::unique_ptr<Tls> over_it = nullptr)  // NOLINT(google-explicit-constructor)
      : socket(std::move(connected)), tls(std::move(over_it))
  {
  }

  Descriptor socket;
  std::unique_ptr<Tls> tls;
};

/// True once the peer of a connected socket has closed the connection or is gone, even when bytes that it sent before
/// are still unread.
bool is_closed_by_peer(int socket);

}  // namespace isobar::exec
