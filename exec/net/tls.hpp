#pragma once

#include "exec/net/secret.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace isobar::exec {

/// TLS 1.3 over a connected socket whose two ends share a key: no certificates, forward secrecy by X25519.
/// No function blocks. The socket belongs to the caller.
class Tls {
 public:
  enum class Side { Initiator, Acceptor };
  /// Result of a step: the bytes moved, or the state that the socket must reach before the step is repeated.
  struct Progress {
    enum class Waits { No, UntilReadable, UntilWritable };
    std::size_t bytes = 0;
    Waits waits = Waits::No;
    int error = 0;      ///< error number of the system, else 0; ECONNRESET when the peer has closed the connection
    std::string fault;  ///< error of TLS, such as bytes changed in transit; else ""
  };

  /// @throws EnvironmentError when OpenSSL fails.
  Tls(int socket, Side side, const Key& key);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  /// Continues the handshake. It is complete, and both ends have proved the key, once it neither waits nor failed.
  Progress shake_hands();
  /// Moves at most one record, 16 KiB. To repeat a write that had to wait, pass bytes that begin with the same ones.
  /// @throws EnvironmentError when a write cannot renew the key.
  Progress read(std::span<std::byte> bytes);
  Progress write(std::span<const std::byte> bytes);

  static constexpr std::size_t longest_record = std::size_t{1} << 14;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
