#pragma once

#include "exec/net/secret.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace isobar::exec {

/// TLS 1.3 over a connected socket whose two ends share a key: no certificates, forward secrecy by X25519.
/// OpenSSL's part only: nothing here waits, and the socket is somebody else's.
class Tls {
 public:
  enum class Side { Initiator, Acceptor };
  /// What a step came to: `bytes` moved; or what the socket must be before the step is worth another try.
  struct Progress {
    enum class Waits { No, UntilReadable, UntilWritable };
    std::size_t bytes = 0;
    Waits waits = Waits::No;
    int error = 0;      ///< of the system, else 0; ECONNRESET when the peer has closed the connection
    std::string fault;  ///< of TLS, such as bytes that were changed on the way; else ""
  };

  /// @throws EnvironmentError when OpenSSL refuses.
  Tls(int socket, Side side, const Key& key);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  /// Has ended once it waits for nothing and nothing failed. Then both ends have proved the key.
  Progress shake_hands();
  /// At most a record, 16 KiB. A write that waits is tried again with bytes that begin with the same ones.
  Progress read(std::span<std::byte> bytes);
  Progress write(std::span<const std::byte> bytes);

  static constexpr std::size_t longest_record = std::size_t{1} << 14;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
