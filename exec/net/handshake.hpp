#pragma once

#include "exec/net/secret.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// How the two ends of a connection prove to each other that they know the same secret, without saying it. Here is what
/// they say; `ConnectionManager` says it over sockets.
///
///   acceptor: Challenge    32 random bytes
///   caller:   Claim        32 random bytes, what it calls for, and a proof
///   acceptor: Verdict      why it turns the caller away, or nothing, and a proof
///
/// A proof is an HMAC-SHA256 over all that was said before, by a key of the secret that differs for the two sides. So
/// what was recorded of one connection proves nothing in another, and an acceptor says nothing but random bytes to
/// whoever does not know the secret. All parts have a fixed length.
namespace isobar::exec {

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

/// What a connection is for, in the caller's bytes; zeros after their end.
using Purpose = std::array<std::byte, 128>;
/// @throws std::logic_error for more than 128 bytes.
Purpose purpose_of(std::string_view text);
/// Up to the first zero.
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
  std::array<char, 128> reason = {};  ///< why the caller is turned away; zeros: it is welcome
  Proof proof = {};
};

/// The calling end of one connection.
class InitiatorHandshake {
 public:
  /// `secret` must outlive it.
  InitiatorHandshake(const Secret& secret, const Purpose& purpose);

  /// What to say to a challenge.
  Claim claim(const Challenge& challenge);
  /// Why the acceptor turns the caller away ("": it does not); nothing when it does not prove the secret.
  std::optional<std::string> reason_of(const Verdict& verdict) const;
  /// A key for what follows on this connection and on no other.
  Key session_key() const;

 private:
  const Secret* secret_;
  Challenge challenge_;
  Claim claim_;
};

/// The accepting end of one connection.
class AcceptorHandshake {
 public:
  /// `secret` must outlive it.
  explicit AcceptorHandshake(const Secret& secret);

  const Challenge& challenge() const { return challenge_; }
  /// Whether the caller knows the secret, and said this here and now.
  bool is_proved_by(const Claim& claim);
  /// What to say to a caller who has proved it; `reason` "" is a welcome, and a longer one than 128 bytes is cut.
  Verdict verdict(std::string_view reason) const;
  Key session_key() const;

 private:
  const Secret* secret_;
  Challenge challenge_;
  Claim claim_;
};

}  // namespace isobar::exec
