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
/// A call without an answer is made anew: the first may have met a process that died, or an address that swallows it.
/// Nor is a caller waited for longer.
constexpr std::chrono::seconds patience(10);
/// Callers who have not proved the secret yet. A rank that makes room calls again.
constexpr std::size_t most_unauthenticated = 256;

constexpr const char* not_proved = "it does not prove the secret: it is another program, or a rank with another secret";
constexpr const char* not_believed = "it hangs up on the proof of the secret: give all ranks the same one";

/// A connection counts once the caller has confirmed it; one whose caller died before does not take its place.
using Confirmation = char;

template <typename Part>
auto buffer_of(Part& part)
{
  return asio::buffer(&part, sizeof part);
}

/// What both ends of a connection have.
struct Line {
  explicit Line(asio::io_context& context) : socket(context), timer(context) {}

  tcp::socket socket;
  asio::steady_timer timer;
  std::unique_ptr<Tls> tls;
  Challenge challenge;
  Claim claim;
  Verdict verdict;
  Confirmation confirmation = '!';
};

struct Outgoing : Line {
  Outgoing(asio::io_context& context, const Secret& secret, Endpoint destination, const Purpose& what_for)
      : Line(context), peer(std::move(destination)), purpose(what_for), handshake(secret, what_for)
  {
  }

  Endpoint peer;
  Purpose purpose;
  ConnectionManager::Connected connected;
  ConnectionManager::TurnedAway turned_away;
  InitiatorHandshake handshake;
  std::size_t attempt = 0;
  std::chrono::milliseconds pause = first_pause;
  std::string trouble = "no answer";
  bool done = false;
};

/// Somebody who called here.
struct Incoming : Line {
  Incoming(asio::io_context& context, const Secret& secret) : Line(context), handshake(secret)
  {
    challenge = handshake.challenge();
  }

  AcceptorHandshake handshake;
  bool proved = false;
};

using LinePointer = std::shared_ptr<Line>;
using OutgoingPointer = std::shared_ptr<Outgoing>;
using IncomingPointer = std::shared_ptr<Incoming>;

bool is_unauthenticated(const IncomingPointer& incoming)
{
  return !incoming->proved;
}

/// Whether the process, or the machine, has as many open files as it may have.
bool is_shortage(const error_code& error)
{
  namespace errc = boost::system::errc;
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
         error == errc::no_buffer_space || error == errc::not_enough_memory;
}

/// Takes the steps of TLS's handshake; then calls `ended`, with what went wrong or "".
template <typename Ended>
void secure(const LinePointer& line, Ended ended)
{
  const auto progress = line->tls->shake_hands();
  if (progress.waits == Tls::Progress::Waits::No) {
    if (!progress.fault.empty()) return ended("TLS: " + progress.fault);
    return ended(progress.error == 0 ? "" : std::generic_category().message(progress.error));
  }
  const bool reads = progress.waits == Tls::Progress::Waits::UntilReadable;
  line->socket.async_wait(reads ? tcp::socket::wait_read : tcp::socket::wait_write,
                          [line, ended = std::move(ended)](const error_code& error) mutable {
                            if (error || !line->socket.is_open()) return ended("no answer");
                            secure(line, std::move(ended));
                          });
}

/// The connection, for messages.
Flow flow_of(Line& line)
{
  error_code ignored;
  line.socket.set_option(tcp::no_delay(true), ignored);
  return {Descriptor(line.socket.release()), std::move(line.tls)};
}

}  // namespace

class ConnectionManager::Impl {
 public:
  Impl(std::shared_ptr<const Secret> secret, bool tls) : secret_(std::move(secret)), tls_(tls) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Nobody listens any longer, though a parent process may have the port open too.
  ~Impl()
  {
    if (acceptor_.is_open()) ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
  }

  void listen(TcpListener listener, Objection objection, Connected connected);
  std::size_t connect(const Endpoint& peer, const Purpose& purpose, Connected connected, TurnedAway turned_away);

  asio::io_context context{1};
  std::vector<OutgoingPointer> outgoing_;
  std::size_t unproved = 0;  ///< calls from somebody who claimed to know the secret
  std::string last_unproved;
  std::string shortage;  ///< why no more calls were taken once; "" else

 private:
  void start(const OutgoingPointer& outgoing);
  void introduce(const OutgoingPointer& outgoing);
  void hear(const OutgoingPointer& outgoing);
  void confirm(const OutgoingPointer& outgoing);
  void finish(const OutgoingPointer& outgoing);
  void retry(const OutgoingPointer& outgoing, const std::string& trouble);

  void accept();
  void accept_later();
  std::size_t unauthenticated() const;
  void keep_unauthenticated(std::size_t most);
  void challenge(const IncomingPointer& incoming);
  void examine(const IncomingPointer& incoming);
  void reply_to(const IncomingPointer& incoming);
  void await_confirmation(const IncomingPointer& incoming);
  void admit(const IncomingPointer& incoming);
  void drop(const IncomingPointer& incoming);

  std::shared_ptr<const Secret> secret_;
  bool tls_;
  std::map<std::string, std::vector<tcp::endpoint>> addresses_;  ///< of peers, as far as they are known
  tcp::acceptor acceptor_{context};
  Objection objection_;
  Connected connected_;
  std::vector<IncomingPointer> incoming_;
  std::size_t most_unauthenticated_ = most_unauthenticated;
  asio::steady_timer pause_{context};
  std::minstd_rand random_{std::random_device{}()};
};

std::size_t ConnectionManager::Impl::connect(const Endpoint& peer, const Purpose& purpose, Connected connected,
                                             TurnedAway turned_away)
{
  auto outgoing = std::make_shared<Outgoing>(context, *secret_, peer, purpose);
  outgoing->connected = std::move(connected);
  outgoing->turned_away = std::move(turned_away);
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
        if (error) return retry(outgoing, error == asio::error::operation_aborted ? "no answer" : error.message());
        error_code ignored;
        // A call to a free port of this machine can get that very port for its own, and reach itself.
        if (outgoing->socket.local_endpoint(ignored) == outgoing->socket.remote_endpoint(ignored)) {
          return retry(outgoing, "nobody is there");
        }
        introduce(outgoing);
      });
}

void ConnectionManager::Impl::introduce(const OutgoingPointer& outgoing)
{
  const auto claimed = [this, outgoing](const error_code& error, std::size_t) {
    if (error) return retry(outgoing, "it hangs up");
    hear(outgoing);
  };
  asio::async_read(outgoing->socket, buffer_of(outgoing->challenge),
                   [this, outgoing, claimed](const error_code& error, std::size_t) {
                     if (error)
                       return retry(outgoing, error == asio::error::operation_aborted ? "no answer" : "it hangs up");
                     outgoing->claim = outgoing->handshake.claim(outgoing->challenge);
                     asio::async_write(outgoing->socket, buffer_of(outgoing->claim), claimed);
                   });
}

void ConnectionManager::Impl::hear(const OutgoingPointer& outgoing)
{
  asio::async_read(outgoing->socket, buffer_of(outgoing->verdict),
                   [this, outgoing](const error_code& error, std::size_t) {
                     if (error)
                       return retry(outgoing, error == asio::error::operation_aborted ? "no answer" : not_believed);
                     const auto reason = outgoing->handshake.reason_of(outgoing->verdict);
                     if (!reason) return retry(outgoing, not_proved);
                     if (reason->empty()) return confirm(outgoing);
                     outgoing->timer.cancel();
                     outgoing->turned_away(shown(*reason, sizeof outgoing->verdict.reason));
                   });
}

void ConnectionManager::Impl::confirm(const OutgoingPointer& outgoing)
{
  asio::async_write(outgoing->socket, buffer_of(outgoing->confirmation),
                    [this, outgoing](const error_code& error, std::size_t) {
                      if (error) return retry(outgoing, "it hangs up");
                      if (!tls_) return finish(outgoing);
                      outgoing->tls = std::make_unique<Tls>(outgoing->socket.native_handle(), Tls::Side::Initiator,
                                                            outgoing->handshake.session_key());
                      secure(outgoing, [this, outgoing](const std::string& trouble) {
                        if (!trouble.empty()) return retry(outgoing, trouble);
                        finish(outgoing);
                      });
                    });
}

void ConnectionManager::Impl::finish(const OutgoingPointer& outgoing)
{
  if (!outgoing->socket.is_open()) return retry(outgoing, "no answer");  // patience has just ended
  outgoing->done = true;
  outgoing->timer.cancel();
  outgoing->connected(outgoing->purpose, flow_of(*outgoing));
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

void ConnectionManager::Impl::listen(TcpListener listener, Objection objection, Connected connected)
{
  ensure(!acceptor_.is_open(), "a connection_manager listens on one port");
  const auto protocol = listener.is_ipv6() ? tcp::v6() : tcp::v4();
  acceptor_.assign(protocol, listener.release().release());
  objection_ = std::move(objection);
  connected_ = std::move(connected);
  accept();
}

void ConnectionManager::Impl::accept()
{
  const auto incoming = std::make_shared<Incoming>(context, *secret_);
  acceptor_.async_accept(incoming->socket, [this, incoming](const error_code& error) {
    if (error == asio::error::operation_aborted) return;
    if (is_shortage(error)) {
      // What is left by half of the strangers serves the calls of this rank too.
      shortage = error.message();
      most_unauthenticated_ = std::max<std::size_t>(unauthenticated() / 2, 1);
      keep_unauthenticated(unauthenticated() / 2);
      return accept_later();
    }
    if (error) throw EnvironmentError("cannot take calls: " + error.message());
    incoming_.push_back(incoming);
    keep_unauthenticated(most_unauthenticated_);
    challenge(incoming);
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

void ConnectionManager::Impl::keep_unauthenticated(std::size_t most)
{
  for (auto count = unauthenticated(); count > most; --count) {
    // Any but the newest, so that a flood, however fast, leaves each caller some chance.
    std::uniform_int_distribution<std::size_t> place(0, std::max<std::size_t>(count, 2) - 2);
    auto found = std::find_if(incoming_.begin(), incoming_.end(), is_unauthenticated);
    for (auto steps = place(random_); steps > 0; --steps)
      found = std::find_if(found + 1, incoming_.end(), is_unauthenticated);
    drop(IncomingPointer(*found));
  }
}

void ConnectionManager::Impl::challenge(const IncomingPointer& incoming)
{
  incoming->timer.expires_after(patience);
  incoming->timer.async_wait([this, incoming](const error_code& error) {
    if (!error) drop(incoming);
  });
  asio::async_write(incoming->socket, buffer_of(incoming->challenge),
                    [this, incoming](const error_code& error, std::size_t) {
                      if (error) return drop(incoming);
                      examine(incoming);
                    });
}

void ConnectionManager::Impl::examine(const IncomingPointer& incoming)
{
  asio::async_read(incoming->socket, buffer_of(incoming->claim),
                   [this, incoming](const error_code& error, std::size_t) {
                     if (error) return drop(incoming);
                     if (incoming->handshake.is_proved_by(incoming->claim)) {
                       incoming->proved = true;
                       return reply_to(incoming);
                     }
                     ++unproved;
                     error_code unknown;
                     const auto address = incoming->socket.remote_endpoint(unknown).address();
                     last_unproved = unknown ? "an unknown address" : address.to_string();
                     drop(incoming);
                   });
}

void ConnectionManager::Impl::reply_to(const IncomingPointer& incoming)
{
  const auto objection = objection_(incoming->claim.purpose);
  incoming->verdict = incoming->handshake.verdict(objection);
  asio::async_write(incoming->socket, buffer_of(incoming->verdict),
                    [this, incoming, welcome = objection.empty()](const error_code& error, std::size_t) {
                      if (error || !welcome) return drop(incoming);
                      await_confirmation(incoming);
                    });
}

void ConnectionManager::Impl::await_confirmation(const IncomingPointer& incoming)
{
  asio::async_read(
      incoming->socket, buffer_of(incoming->confirmation), [this, incoming](const error_code& error, std::size_t) {
        if (error) return drop(incoming);
        if (!tls_) return admit(incoming);
        incoming->tls = std::make_unique<Tls>(incoming->socket.native_handle(), Tls::Side::Acceptor,
                                              incoming->handshake.session_key());
        secure(incoming,
               [this, incoming](const std::string& trouble) { trouble.empty() ? admit(incoming) : drop(incoming); });
      });
}

void ConnectionManager::Impl::admit(const IncomingPointer& incoming)
{
  const bool welcome = incoming->socket.is_open() && objection_(incoming->claim.purpose).empty();
  if (welcome) connected_(incoming->claim.purpose, flow_of(*incoming));
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
  ensure(secret != nullptr, "whoever connects knows a secret");
  impl_ = std::make_unique<Impl>(std::move(secret), tls);
}

ConnectionManager::~ConnectionManager() = default;

void ConnectionManager::listen(TcpListener listener, Objection objection, Connected connected)
{
  impl_->listen(std::move(listener), std::move(objection), std::move(connected));
}

std::size_t ConnectionManager::connect(const Endpoint& peer, const Purpose& purpose, Connected connected,
                                       TurnedAway turned_away)
{
  return impl_->connect(peer, purpose, std::move(connected), std::move(turned_away));
}

bool ConnectionManager::work(Clock::time_point deadline)
{
  throw_if_interrupted();
  // In short waits, since a signal that another thread gets wakes nobody here.
  const auto next_look = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
  impl_->context.restart();  // it stops whenever it has nothing left to do
  return impl_->context.run_one_until(next_look) > 0 || Clock::now() < deadline;
}

const std::string& ConnectionManager::trouble(std::size_t outgoing) const
{
  return impl_->outgoing_.at(outgoing)->trouble;
}

std::string ConnectionManager::unauthenticated() const
{
  std::string text;
  if (impl_->unproved > 0) {
    text = fmt::format("; {} {} not prove the secret (the last one from {}): give all ranks the same one",
                       impl_->unproved, impl_->unproved == 1 ? "call did" : "calls did", impl_->last_unproved);
  }
  if (!impl_->shortage.empty()) text += "; not all calls could be taken at once: " + impl_->shortage;
  return text;
}

}  // namespace isobar::exec
