#pragma once

#include "exec/net/secret.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// Messages by which the two ends of a connection prove to each other that they know the same secret, without sending
/// it. `ConnectionManager` exchanges them over sockets.
///
///   acceptor:  Challenge    32 random bytes
///   initiator: Claim        32 random bytes, the purpose of the connection, and a proof
///   acceptor:  Verdict      why it rejects the connection, or nothing, and a proof
///
/// A proof is an HMAC-SHA256 over all previous bytes, by a key of the secret that differs for the two sides. A recorded
/// handshake therefore proves nothing on another connection, and an initiator that does not know the secret receives
/// only random bytes. All parts have a fixed length.
namespace isobar::exec {

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

/// What a connection is for, in the initiator's bytes, padded with zeros.
using Purpose = std::array<std::byte, 128>;
/// @throws std::logic_error for more than 128 bytes.
Purpose purpose_of(std::string_view text);
/// The bytes before the first zero.
std::string text_of(const Purpose& purpose);

struct Challenge {
  Nonce nonce = {};
};

struct Claim {
  Nonce nonce = {};
  Purpose purpose = {};
  Proof proof = {};
};

struct Verdict {
  std::array<char, 128> reason = {};  ///< why the connection is rejected; all zeros: it is accepted
  Proof proof = {};
};

/// The initiating end of one connection.
class InitiatorHandshake {
 public:
  /// `secret` must outlive this object.
  InitiatorHandshake(const Secret& secret, const Purpose& purpose);

  /// Answer to a challenge.
  Claim claim(const Challenge& challenge);
  /// Why the acceptor rejects the connection, "" when it accepts it; nullopt when the verdict does not prove the
  /// secret.
  std::optional<std::string> reason_of(const Verdict& verdict) const;
  /// Key for the traffic of this connection; differs for every connection.
  Key session_key() const;

 private:
  const Secret* secret_;
  Challenge challenge_;
  Claim claim_;
};

/// The accepting end of one connection.
class AcceptorHandshake {
 public:
  /// `secret` must outlive this object.
  explicit AcceptorHandshake(const Secret& secret);

  const Challenge& challenge() const { return challenge_; }
  /// True when the claim proves the secret and answers this challenge.
  bool is_proved_by(const Claim& claim);
  /// Answer to an authenticated initiator. `reason`: "" accepts the connection; longer texts are cut to 128 bytes.
  Verdict verdict(std::string_view reason) const;
  Key session_key() const;

 private:
  const Secret* secret_;
  Challenge challenge_;
  Claim claim_;
};

}  // namespace isobar::exec
