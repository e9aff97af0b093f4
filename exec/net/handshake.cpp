#include "exec/net/handshake.hpp"

#include "core/errors.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

namespace isobar::exec {

namespace {

// They are sent as they lie in memory.
static_assert(std::is_trivially_copyable_v<Challenge> && sizeof(Challenge) == 32);
static_assert(std::is_trivially_copyable_v<Claim> && sizeof(Claim) == 192);
static_assert(std::is_trivially_copyable_v<Verdict> && sizeof(Verdict) == 160);

// Labels of the keys. Those of the two sides differ, so that no side can be answered with its own messages. The number
// is the version of the protocol; the first label dates from when initiators were callers.
constexpr std::string_view initiator_label = "isobar handshake 1, caller";
constexpr std::string_view acceptor_label = "isobar handshake 1, acceptor";
constexpr std::string_view session_label = "isobar handshake 1, session";

Nonce fresh_nonce()
{
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) != 1) {
    throw EnvironmentError("cannot get random bytes from the system");
  }
  return nonce;
}

/// All bytes before the initiator's proof, then `more`.
std::vector<std::byte> transcript(const Challenge& challenge, const Claim& claim, std::span<const std::byte> more = {})
{
  std::vector<std::byte> bytes;
  for (const std::span<const std::byte> part :
       {std::span<const std::byte>(challenge.nonce), std::span<const std::byte>(claim.nonce),
        std::span<const std::byte>(claim.purpose), more}) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

Proof proof_of(const Secret& secret, std::string_view label, const std::vector<std::byte>& bytes)
{
  const Key key = secret.key(label);
  const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr), EVP_MAC_free);
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(EVP_MAC_CTX_new(mac.get()), EVP_MAC_CTX_free);
  std::string digest = "SHA256";
  const std::array params = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
                             OSSL_PARAM_construct_end()};
  Proof proof;
  std::size_t size = 0;
  const auto data_of = [](const auto& range) { return reinterpret_cast<const unsigned char*>(range.data()); };
  const bool done =
      EVP_MAC_init(context.get(), data_of(key.bytes()), Key::size, params.data()) == 1 &&
      EVP_MAC_update(context.get(), data_of(bytes), bytes.size()) == 1 &&
      EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(proof.data()), &size, proof.size()) == 1;
  if (!done || size != proof.size())
    throw EnvironmentError("OpenSSL cannot compute a proof of the secret (HMAC with SHA-256)");
  return proof;
}

/// Constant time: the duration does not reveal where they differ.
bool are_equal(const Proof& left, const Proof& right)
{
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace

Purpose purpose_of(std::string_view text)
{
  Purpose purpose = {};
  ensure(text.size() <= purpose.size(), "a purpose has at most 128 bytes");
  std::ranges::copy(std::as_bytes(std::span(text)), purpose.begin());
  return purpose;
}

std::string text_of(const Purpose& purpose)
{
  std::string text(reinterpret_cast<const char*>(purpose.data()), purpose.size());
  return text.substr(0, text.find('\0'));
}

InitiatorHandshake::InitiatorHandshake(const Secret& secret, const Purpose& purpose) : secret_(&secret)
{
  claim_.purpose = purpose;
}

Claim InitiatorHandshake::claim(const Challenge& challenge)
{
  challenge_ = challenge;
  claim_.nonce = fresh_nonce();
  claim_.proof = proof_of(*secret_, initiator_label, transcript(challenge_, claim_));
  return claim_;
}

std::optional<std::string> InitiatorHandshake::reason_of(const Verdict& verdict) const
{
  const auto bytes = transcript(challenge_, claim_, std::as_bytes(std::span(verdict.reason)));
  if (!are_equal(verdict.proof, proof_of(*secret_, acceptor_label, bytes))) return std::nullopt;
  return std::string(verdict.reason.begin(), std::ranges::find(verdict.reason, '\0'));
}

Key InitiatorHandshake::session_key() const
{
  return secret_->key(session_label, transcript(challenge_, claim_));
}

AcceptorHandshake::AcceptorHandshake(const Secret& secret) : secret_(&secret), challenge_{fresh_nonce()} {}

bool AcceptorHandshake::is_proved_by(const Claim& claim)
{
  claim_ = claim;
  return are_equal(claim_.proof, proof_of(*secret_, initiator_label, transcript(challenge_, claim_)));
}

Verdict AcceptorHandshake::verdict(std::string_view reason) const
{
  Verdict verdict;
  std::ranges::copy(reason.substr(0, verdict.reason.size()), verdict.reason.begin());
  verdict.proof =
      proof_of(*secret_, acceptor_label, transcript(challenge_, claim_, std::as_bytes(std::span(verdict.reason))));
  return verdict;
}

Key AcceptorHandshake::session_key() const
{
  return secret_->key(session_label, transcript(challenge_, claim_));
}

}  // namespace isobar::exec
