#include "exec/net/tls.hpp"

#include "core/errors.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace isobar::exec {

namespace {

constexpr const char* identity = "isobar";  // one name for all keys, although each connection has its own
/// Bytes sealed with one key, at most: AES-GCM allows for some 2^24.5 records (RFC 8446, 5.5).
constexpr std::uint64_t bytes_per_key = std::uint64_t{1} << 30;

std::string reason()
{
  const auto code = ERR_get_error();
  const char* text = ::ERR_reason_error_string(code);
  return text == nullptr ? "no reason given" : text;
}

void check(bool done, const char* what)
{
  if (!done) throw EnvironmentError(std::string("OpenSSL cannot ") + what + ": " + reason());
}

/// Reports the result of a system call as OpenSSL's streams do, with a flag when the call is to be repeated.
int result_of(BIO* stream, ssize_t count, int direction)
{
  ::BIO_clear_retry_flags(stream);
  if (count >= 0) return static_cast<int>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    ::BIO_set_flags(stream, direction | BIO_FLAGS_SHOULD_RETRY);
  }
  return -1;
}

int socket_of(BIO* stream)
{
  return *static_cast<const int*>(::BIO_get_data(stream));
}

int write_to(BIO* stream, const char* bytes, int size)
{
  const auto count = ::send(socket_of(stream), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  return result_of(stream, count, BIO_FLAGS_WRITE);
}

int read_from(BIO* stream, char* bytes, int size)
{
  const auto count = ::recv(socket_of(stream), bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (count == 0) ::BIO_set_flags(stream, BIO_FLAGS_IN_EOF);
  return result_of(stream, count, BIO_FLAGS_READ);
}

long control(BIO* stream, int command, long, void*)
{
  if (command == BIO_CTRL_EOF) return ::BIO_test_flags(stream, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Like OpenSSL's own streams over sockets, but never blocks, and a closed connection raises no SIGPIPE.
const BIO_METHOD* socket_stream()
{
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    check(made != nullptr, "make a stream");
    ::BIO_meth_set_write(made, write_to);
    ::BIO_meth_set_read(made, read_from);
    ::BIO_meth_set_ctrl(made, control);
    return made;
  }();
  return method;
}

}  // namespace

class Tls::Impl {
 public:
  Impl(int socket, Side side, const Key& key);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl()
  {
    ::SSL_free(ssl_);
    ::SSL_CTX_free(context_);
    ::SSL_SESSION_free(session_);
  }

  /// Runs one step of OpenSSL and returns its result.
  template <typename Step>
  Progress progress_of(Step step);

  SSL* ssl() const { return ssl_; }
  /// Call after `size` more bytes were written.
  void renew_key(std::size_t size);

 private:
  static int session_of_initiator(SSL* ssl, const EVP_MD* digest, const unsigned char** name, std::size_t* length,
                                  SSL_SESSION** session);
  static int session_of_acceptor(SSL* ssl, const unsigned char* name, std::size_t length, SSL_SESSION** session);
  SSL_SESSION* session_for(SSL* ssl) const;

  int socket_;
  std::uint64_t sealed_ = 0;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  SSL_SESSION* session_ = nullptr;  ///< it holds the key
};

Tls::Impl::Impl(int socket, Side side, const Key& key) : socket_(socket)
{
  ::ERR_clear_error();
  context_ = ::SSL_CTX_new(::TLS_method());
  check(context_ != nullptr, "begin TLS");
  check(::SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
            ::SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") == 1 &&
            ::SSL_CTX_set1_groups_list(context_, "X25519") == 1,
        "use TLS 1.3 with AES-128-GCM and X25519");
  // Only the key authenticates a peer: certificates are neither requested nor accepted.
  if (side == Side::Initiator) ::SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_num_tickets(context_, 0);
  // A peer that dies sends no close notification; messages carry their length.
  ::SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  ::SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // One system call reads several records.
  ::SSL_CTX_set_read_ahead(context_, 1);
  ::SSL_CTX_set_default_read_buffer_len(context_, 16 * longest_record);
  ::SSL_CTX_set_psk_use_session_callback(context_, session_of_initiator);
  ::SSL_CTX_set_psk_find_session_callback(context_, session_of_acceptor);

  ssl_ = ::SSL_new(context_);
  session_ = ::SSL_SESSION_new();
  check(ssl_ != nullptr && session_ != nullptr, "begin TLS");
  constexpr std::array<unsigned char, 2> aes_128_gcm_sha256 = {0x13, 0x01};
  check(::SSL_SESSION_set1_master_key(session_, reinterpret_cast<const unsigned char*>(key.bytes().data()),
                                      Key::size) == 1 &&
            ::SSL_SESSION_set_cipher(session_, ::SSL_CIPHER_find(ssl_, aes_128_gcm_sha256.data())) == 1 &&
            ::SSL_SESSION_set_protocol_version(session_, TLS1_3_VERSION) == 1,
        "use a shared key");
  SSL_set_app_data(ssl_, this);
  BIO* stream = ::BIO_new(socket_stream());
  check(stream != nullptr, "make a stream");
  ::BIO_set_data(stream, &socket_);
  ::BIO_set_init(stream, 1);
  ::SSL_set_bio(ssl_, stream, stream);
  side == Side::Initiator ? ::SSL_set_connect_state(ssl_) : ::SSL_set_accept_state(ssl_);
}

SSL_SESSION* Tls::Impl::session_for(SSL* ssl) const
{
  // The connection frees its copy.
  return ssl == ssl_ ? ::SSL_SESSION_dup(session_) : nullptr;
}

int Tls::Impl::session_of_initiator(SSL* ssl, const EVP_MD* digest, const unsigned char** name, std::size_t* length,
                                    SSL_SESSION** session)
{
  const auto* self = static_cast<const Impl*>(SSL_get_app_data(ssl));
  *name = reinterpret_cast<const unsigned char*>(identity);
  *length = std::strlen(identity);
  // OpenSSL calls again with the digest that the peer has chosen; only SHA-256 fits our cipher.
  *session = digest == nullptr || ::EVP_MD_is_a(digest, "SHA256") == 1 ? self->session_for(ssl) : nullptr;
  return 1;
}

int Tls::Impl::session_of_acceptor(SSL* ssl, const unsigned char* name, std::size_t length, SSL_SESSION** session)
{
  const auto* self = static_cast<const Impl*>(SSL_get_app_data(ssl));
  const bool is_ours = std::string_view(reinterpret_cast<const char*>(name), length) == identity;
  *session = is_ours ? self->session_for(ssl) : nullptr;
  return 1;
}

template <typename Step>
Tls::Progress Tls::Impl::progress_of(Step step)
{
  ::ERR_clear_error();
  errno = 0;
  Progress progress;
  const int result = step(progress.bytes);
  const int system = errno;
  if (result == 1) return progress;
  progress.bytes = 0;
  switch (::SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      progress.waits = Progress::Waits::UntilReadable;
      break;
    case SSL_ERROR_WANT_WRITE:
      progress.waits = Progress::Waits::UntilWritable;
      break;
    case SSL_ERROR_SSL:
      progress.fault = reason();
      break;
    default:  // closed by the peer, cleanly or not, or a system error
      progress.error = system == 0 ? ECONNRESET : system;
  }
  return progress;
}

void Tls::Impl::renew_key(std::size_t size)
{
  sealed_ += size;
  if (sealed_ < bytes_per_key) return;
  sealed_ = 0;
  check(::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "renew a key");
}

Tls::Tls(int socket, Side side, const Key& key) : impl_(std::make_unique<Impl>(socket, side, key)) {}

Tls::~Tls() = default;

Tls::Progress Tls::shake_hands()
{
  auto progress = impl_->progress_of([&](std::size_t&) { return ::SSL_do_handshake(impl_->ssl()); });
  const bool ended = progress.waits == Progress::Waits::No && progress.error == 0 && progress.fault.empty();
  if (ended && ::SSL_session_reused(impl_->ssl()) != 1) progress.fault = "the peer has not proved the key";
  return progress;
}

Tls::Progress Tls::read(std::span<std::byte> bytes)
{
  return impl_->progress_of(
      [&](std::size_t& count) { return ::SSL_read_ex(impl_->ssl(), bytes.data(), bytes.size(), &count); });
}

Tls::Progress Tls::write(std::span<const std::byte> bytes)
{
  auto progress = impl_->progress_of([&](std::size_t& count) {
    return ::SSL_write_ex(impl_->ssl(), bytes.data(), std::min(bytes.size(), longest_record), &count);
  });
  impl_->renew_key(progress.bytes);
  return progress;
}

}  // namespace isobar::exec
