#include "exec/net/connection_manager.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <sys/socket.h>
#include <algorithm>
#include <map>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds first_pause(10);
constexpr std::chrono::milliseconds longest_pause(500);
/// Limit of a handshake at both ends. An attempt without an answer is repeated: the first one may have reached a
/// process that died, or an address that drops packets.
constexpr std::chrono::seconds patience(10);
/// A rank that is dropped in favour of another peer connects again.
constexpr std::size_t most_unauthenticated = 256;

constexpr const char* no_answer = "no answer";
constexpr const char* connection_closed = "it closed the connection";
constexpr const char* secret_not_proved =
    "it does not prove the secret: it is another program, or a rank with another secret";
constexpr const char* proof_not_accepted =
    "it closed the connection after our proof of the secret: give all ranks the same secret";

/// A connection counts once its initiator has confirmed it, so that one whose initiator died takes no rank's place.
using Confirmation = char;

template <typename Part>
auto buffer_of(Part& part)
{
  return asio::buffer(&part, sizeof part);
}

/// A connection during its handshake, at either end.
struct Handshaking {
  explicit Handshaking(asio::io_context& context) : socket(context), timer(context) {}

  tcp::socket socket;
  asio::steady_timer timer;
  std::unique_ptr<Tls> tls;
  Challenge challenge;
  Claim claim;
  Verdict verdict;
  Confirmation confirmation = '!';
};

struct Outgoing : Handshaking {
  Outgoing(asio::io_context& context, const Secret& secret, Endpoint destination, const Purpose& what_for)
      : Handshaking(context), peer(std::move(destination)), purpose(what_for), handshake(secret, what_for)
  {
  }

  Endpoint peer;
  Purpose purpose;
  ConnectionManager::Connected connected;
  ConnectionManager::Rejected rejected;
  InitiatorHandshake handshake;
  std::size_t attempt = 0;
  std::chrono::milliseconds pause = first_pause;
  std::string trouble = no_answer;
  bool done = false;
};

struct Incoming : Handshaking {
  Incoming(asio::io_context& context, const Secret& secret) : Handshaking(context), handshake(secret)
  {
    challenge = handshake.challenge();
  }

  AcceptorHandshake handshake;
  bool is_authenticated = false;
};

using HandshakingPointer = std::shared_ptr<Handshaking>;
using OutgoingPointer = std::shared_ptr<Outgoing>;
using IncomingPointer = std::shared_ptr<Incoming>;

bool is_unauthenticated(const IncomingPointer& incoming)
{
  return !incoming->is_authenticated;
}

/// True when the process or the machine has reached its limit of open files or memory.
bool is_shortage(const error_code& error)
{
  namespace errc = boost::system::errc;
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
         error == errc::no_buffer_space || error == errc::not_enough_memory;
}

/// Runs the handshake of TLS. `ended` receives what went wrong, or "".
template <typename Ended>
void shake_hands(const HandshakingPointer& connection, Ended ended)
{
  const auto progress = connection->tls->shake_hands();
  if (progress.waits == Tls::Progress::Waits::No) {
    if (!progress.fault.empty()) return ended("TLS: " + progress.fault);
    return ended(progress.error == 0 ? "" : std::generic_category().message(progress.error));
  }
  const bool reads = progress.waits == Tls::Progress::Waits::UntilReadable;
  connection->socket.async_wait(reads ? tcp::socket::wait_read : tcp::socket::wait_write,
                                [connection, ended = std::move(ended)](const error_code& error) mutable {
                                  if (error || !connection->socket.is_open()) return ended(no_answer);
                                  shake_hands(connection, std::move(ended));
                                });
}

Connection release_connection(Handshaking& from)
{
  error_code ignored;
  from.socket.set_option(tcp::no_delay(true), ignored);
  return {Descriptor(from.socket.release()), std::move(from.tls)};
}

}  // namespace

class ConnectionManager::Impl {
 public:
  Impl(std::shared_ptr<const Secret> secret, bool tls) : secret_(std::move(secret)), tls_(tls) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Stops listening for all processes: a parent process may have the port open too.
  ~Impl()
  {
    if (acceptor_.is_open()) ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
  }

  void listen(TcpListener listener, ReasonToReject reason_to_reject, Connected connected);
  std::size_t connect(const Endpoint& peer, const Purpose& purpose, Connected connected, Rejected rejected);

  asio::io_context context{1};
  std::vector<OutgoingPointer> outgoing_;
  std::size_t false_claims = 0;  ///< connections whose claim did not prove the secret
  std::string last_false_claim;  ///< address of the last one
  std::string shortage;          ///< why some connections could not be accepted at once; "" else

 private:
  // Initiating: the steps of a handshake, in order.
  void start(const OutgoingPointer& outgoing);
  void send_claim(const OutgoingPointer& outgoing);
  void receive_verdict(const OutgoingPointer& outgoing);
  void send_confirmation(const OutgoingPointer& outgoing);
  void finish(const OutgoingPointer& outgoing);
  void retry(const OutgoingPointer& outgoing, const std::string& trouble);

  // Accepting: likewise.
  void accept();
  void accept_later();
  void send_challenge(const IncomingPointer& incoming);
  void receive_claim(const IncomingPointer& incoming);
  void send_verdict(const IncomingPointer& incoming);
  void receive_confirmation(const IncomingPointer& incoming);
  void finish(const IncomingPointer& incoming);
  void drop(const IncomingPointer& incoming);
  std::size_t unauthenticated() const;
  void drop_unauthenticated(std::size_t most_kept);

  std::shared_ptr<const Secret> secret_;
  bool tls_;
  std::map<std::string, std::vector<tcp::endpoint>> addresses_;  ///< of peers, once resolved
  tcp::acceptor acceptor_{context};
  ReasonToReject reason_to_reject_;
  Connected connected_;
  std::vector<IncomingPointer> incoming_;
  std::size_t most_unauthenticated_ = most_unauthenticated;
  asio::steady_timer pause_{context};
  std::minstd_rand random_{std::random_device{}()};
};

std::size_t ConnectionManager::Impl::connect(const Endpoint& peer, const Purpose& purpose, Connected connected,
                                             Rejected rejected)
{
  auto outgoing = std::make_shared<Outgoing>(context, *secret_, peer, purpose);
  outgoing->connected = std::move(connected);
  outgoing->rejected = std::move(rejected);
  outgoing_.push_back(outgoing);
  start(outgoing);
  return outgoing_.size() - 1;
}

void ConnectionManager::Impl::start(const OutgoingPointer& outgoing)
{
  auto& addresses = addresses_[text_of(outgoing->peer)];
  if (addresses.empty()) {
    // Blocks; the system's resolver has time limits of its own.
    error_code error;
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(outgoing->peer.host, std::to_string(outgoing->peer.port),
                                        tcp::resolver::numeric_service, error);
    if (error) return retry(outgoing, error.message());
    for (const auto& entry : found) addresses.push_back(entry.endpoint());
  }
  outgoing->timer.expires_after(patience);
  outgoing->timer.async_wait([outgoing, attempt = outgoing->attempt](const error_code& error) {
    error_code ignored;
    if (!error && !outgoing->done && outgoing->attempt == attempt) outgoing->socket.close(ignored);
  });
  outgoing->socket = tcp::socket(context);
  outgoing->socket.async_connect(
      addresses[outgoing->attempt % addresses.size()], [this, outgoing](const error_code& error) {
        if (error) return retry(outgoing, error == asio::error::operation_aborted ? no_answer : error.message());
        error_code ignored;
        // A connection to a free port of this machine may get that port as its own, and so reach itself.
        if (outgoing->socket.local_endpoint(ignored) == outgoing->socket.remote_endpoint(ignored)) {
          return retry(outgoing, "no process listens there");
        }
        send_claim(outgoing);
      });
}

void ConnectionManager::Impl::send_claim(const OutgoingPointer& outgoing)
{
  const auto claimed = [this, outgoing](const error_code& error, std::size_t) {
    if (error) return retry(outgoing, connection_closed);
    receive_verdict(outgoing);
  };
  asio::async_read(outgoing->socket, buffer_of(outgoing->challenge),
                   [this, outgoing, claimed](const error_code& error, std::size_t) {
                     if (error)
                       return retry(outgoing, error == asio::error::operation_aborted ? no_answer : connection_closed);
                     outgoing->claim = outgoing->handshake.claim(outgoing->challenge);
                     asio::async_write(outgoing->socket, buffer_of(outgoing->claim), claimed);
                   });
}

void ConnectionManager::Impl::receive_verdict(const OutgoingPointer& outgoing)
{
  asio::async_read(outgoing->socket, buffer_of(outgoing->verdict),
                   [this, outgoing](const error_code& error, std::size_t) {
                     if (error)
                       return retry(outgoing, error == asio::error::operation_aborted ? no_answer : proof_not_accepted);
                     const auto reason = outgoing->handshake.reason_of(outgoing->verdict);
                     if (!reason) return retry(outgoing, secret_not_proved);
                     if (reason->empty()) return send_confirmation(outgoing);
                     outgoing->timer.cancel();
                     outgoing->rejected(shown(*reason, sizeof outgoing->verdict.reason));
                   });
}

void ConnectionManager::Impl::send_confirmation(const OutgoingPointer& outgoing)
{
  asio::async_write(outgoing->socket, buffer_of(outgoing->confirmation),
                    [this, outgoing](const error_code& error, std::size_t) {
                      if (error) return retry(outgoing, connection_closed);
                      if (!tls_) return finish(outgoing);
                      outgoing->tls = std::make_unique<Tls>(outgoing->socket.native_handle(), Tls::Side::Initiator,
                                                            outgoing->handshake.session_key());
                      shake_hands(outgoing, [this, outgoing](const std::string& trouble) {
                        if (!trouble.empty()) return retry(outgoing, trouble);
                        finish(outgoing);
                      });
                    });
}

void ConnectionManager::Impl::finish(const OutgoingPointer& outgoing)
{
  if (!outgoing->socket.is_open()) return retry(outgoing, no_answer);  // the time limit has just passed
  outgoing->done = true;
  outgoing->timer.cancel();
  outgoing->connected(outgoing->purpose, release_connection(*outgoing));
}

void ConnectionManager::Impl::retry(const OutgoingPointer& outgoing, const std::string& trouble)
{
  outgoing->trouble = trouble;
  ++outgoing->attempt;
  error_code ignored;
  outgoing->socket.close(ignored);
  outgoing->tls.reset();
  outgoing->timer.expires_after(outgoing->pause);
  outgoing->timer.async_wait([this, outgoing](const error_code& error) {
    if (!error) start(outgoing);
  });
  outgoing->pause = std::min(outgoing->pause * 3 / 2, longest_pause);
}

void ConnectionManager::Impl::listen(TcpListener listener, ReasonToReject reason_to_reject, Connected connected)
{
  ensure(!acceptor_.is_open(), "a connection manager listens on one port");
  const auto protocol = listener.is_ipv6() ? tcp::v6() : tcp::v4();
  acceptor_.assign(protocol, listener.release().release());
  reason_to_reject_ = std::move(reason_to_reject);
  connected_ = std::move(connected);
  accept();
}

void ConnectionManager::Impl::accept()
{
  const auto incoming = std::make_shared<Incoming>(context, *secret_);
  acceptor_.async_accept(incoming->socket, [this, incoming](const error_code& error) {
    if (error == asio::error::operation_aborted) return;
    if (is_shortage(error)) {
      // The files of the dropped half also serve this rank's outgoing connections.
      shortage = error.message();
      most_unauthenticated_ = std::max<std::size_t>(unauthenticated() / 2, 1);
      drop_unauthenticated(unauthenticated() / 2);
      return accept_later();
    }
    if (error) throw EnvironmentError("cannot accept connections: " + error.message());
    incoming_.push_back(incoming);
    drop_unauthenticated(most_unauthenticated_);
    send_challenge(incoming);
    accept();
  });
}

void ConnectionManager::Impl::accept_later()
{
  pause_.expires_after(first_pause);
  pause_.async_wait([this](const error_code& error) {
    if (!error) accept();
  });
}

std::size_t ConnectionManager::Impl::unauthenticated() const
{
  return static_cast<std::size_t>(std::count_if(incoming_.begin(), incoming_.end(), is_unauthenticated));
}

void ConnectionManager::Impl::drop_unauthenticated(std::size_t most_kept)
{
  for (auto count = unauthenticated(); count > most_kept; --count) {
    // At random but not the newest, so that each peer has a chance however fast a flood is.
    std::uniform_int_distribution<std::size_t> place(0, std::max<std::size_t>(count, 2) - 2);
    auto found = std::find_if(incoming_.begin(), incoming_.end(), is_unauthenticated);
    for (auto steps = place(random_); steps > 0; --steps)
      found = std::find_if(found + 1, incoming_.end(), is_unauthenticated);
    drop(IncomingPointer(*found));
  }
}

void ConnectionManager::Impl::send_challenge(const IncomingPointer& incoming)
{
  incoming->timer.expires_after(patience);
  incoming->timer.async_wait([this, incoming](const error_code& error) {
    if (!error) drop(incoming);
  });
  asio::async_write(incoming->socket, buffer_of(incoming->challenge),
                    [this, incoming](const error_code& error, std::size_t) {
                      if (error) return drop(incoming);
                      receive_claim(incoming);
                    });
}

void ConnectionManager::Impl::receive_claim(const IncomingPointer& incoming)
{
  asio::async_read(incoming->socket, buffer_of(incoming->claim),
                   [this, incoming](const error_code& error, std::size_t) {
                     if (error) return drop(incoming);
                     if (incoming->handshake.is_proved_by(incoming->claim)) {
                       incoming->is_authenticated = true;
                       return send_verdict(incoming);
                     }
                     ++false_claims;
                     error_code unknown;
                     const auto address = incoming->socket.remote_endpoint(unknown).address();
                     last_false_claim = unknown ? "an unknown address" : address.to_string();
                     drop(incoming);
                   });
}

void ConnectionManager::Impl::send_verdict(const IncomingPointer& incoming)
{
  const auto reason = reason_to_reject_(incoming->claim.purpose);
  incoming->verdict = incoming->handshake.verdict(reason);
  asio::async_write(incoming->socket, buffer_of(incoming->verdict),
                    [this, incoming, is_accepted = reason.empty()](const error_code& error, std::size_t) {
                      if (error || !is_accepted) return drop(incoming);
                      receive_confirmation(incoming);
                    });
}

void ConnectionManager::Impl::receive_confirmation(const IncomingPointer& incoming)
{
  asio::async_read(incoming->socket, buffer_of(incoming->confirmation),
                   [this, incoming](const error_code& error, std::size_t) {
                     if (error) return drop(incoming);
                     if (!tls_) return finish(incoming);
                     incoming->tls = std::make_unique<Tls>(incoming->socket.native_handle(), Tls::Side::Acceptor,
                                                           incoming->handshake.session_key());
                     shake_hands(incoming, [this, incoming](const std::string& trouble) {
                       trouble.empty() ? finish(incoming) : drop(incoming);
                     });
                   });
}

void ConnectionManager::Impl::finish(const IncomingPointer& incoming)
{
  const bool is_accepted = incoming->socket.is_open() && reason_to_reject_(incoming->claim.purpose).empty();
  if (is_accepted) connected_(incoming->claim.purpose, release_connection(*incoming));
  drop(incoming);
}

void ConnectionManager::Impl::drop(const IncomingPointer& incoming)
{
  error_code ignored;
  incoming->socket.close(ignored);
  incoming->timer.cancel();
  std::erase(incoming_, incoming);
}

ConnectionManager::ConnectionManager(std::shared_ptr<const Secret> secret, bool tls)
{
  ensure(secret != nullptr, "a connection manager has a secret");
  impl_ = std::make_unique<Impl>(std::move(secret), tls);
}

ConnectionManager::~ConnectionManager() = default;

void ConnectionManager::listen(TcpListener listener, ReasonToReject reason_to_reject, Connected connected)
{
  impl_->listen(std::move(listener), std::move(reason_to_reject), std::move(connected));
}

std::size_t ConnectionManager::connect(const Endpoint& peer, const Purpose& purpose, Connected connected,
                                       Rejected rejected)
{
  return impl_->connect(peer, purpose, std::move(connected), std::move(rejected));
}

bool ConnectionManager::work(Clock::time_point deadline)
{
  throw_if_interrupted();
  // In short waits, because a signal that another thread receives does not wake this one.
  const auto next_look = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
  impl_->context.restart();  // it stops whenever it has nothing left to do
  return impl_->context.run_one_until(next_look) > 0 || Clock::now() < deadline;
}

const std::string& ConnectionManager::trouble(std::size_t attempt) const
{
  return impl_->outgoing_.at(attempt)->trouble;
}

std::string ConnectionManager::unauthenticated() const
{
  std::string text;
  if (impl_->false_claims > 0) {
    text =
        fmt::format("; {} connection{} did not prove the secret (the last one from {}): give all ranks the same secret",
                    impl_->false_claims, impl_->false_claims == 1 ? "" : "s", impl_->last_false_claim);
  }
  if (!impl_->shortage.empty()) text += "; not all connections could be accepted at once: " + impl_->shortage;
  return text;
}

}  // namespace isobar::exec
