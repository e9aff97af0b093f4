#include "exec/links/tcp_connect.hpp"

#include "core/errors.hpp"
#include "exec/net/connection_manager.hpp"

#include <fmt/format.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace isobar::exec {

namespace {

static_assert(std::endian::native == std::endian::little, "a Hello is sent as it lies in memory");

template <std::size_t size>
using Text = std::array<char, size>;

/// Padded with zeros, or cut.
template <std::size_t size>
Text<size> padded(std::string_view text)
{
  Text<size> out = {};
  std::copy_n(text.begin(), std::min(size, text.size()), out.begin());
  return out;
}

/// The purpose of a connection: which one of which link it is, and what both ends must agree on.
struct Hello {
  Text<8> mark = padded<8>("link");
  std::uint32_t version = 4;
  std::uint32_t ranks = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t channel = 0;
  std::uint32_t connection = 0;
  std::uint32_t connections = 0;  ///< TcpOptions::connections
  std::uint32_t tls = 0;
  std::uint64_t first_step = 0;
  Text<64> run_id = {};
};
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 112 && sizeof(Hello) <= sizeof(Purpose));

Hello hello_of(const Purpose& purpose)
{
  Hello hello;
  std::memcpy(&hello, purpose.data(), sizeof hello);
  return hello;
}

LinkName link_of(const Hello& hello)
{
  return {.from = hello.from, .to = hello.to, .channel = hello.channel};
}

std::size_t connections_of(const LinkName& link, const TcpOptions& options)
{
  const bool has_little_data = std::any_of(options.groups.begin(), options.groups.end(), [&](const RankGroup& group) {
    return group.channel == link.channel && group.has_little_data;
  });
  return link.channel < first_narrow_channel && !has_little_data ? options.connections : 1;
}

bool is_connected(const Connection& connection)
{
  return connection.socket.is_open() && !is_closed_by_peer(connection.socket.number());
}

void set_option(int socket, int level, int name, int value)
{
  ::setsockopt(socket, level, name, &value, sizeof value);
}

/// While ranks connect, nothing else detects a machine that has vanished: its connections count as closed after 9 s.
void start_keepalive(int socket)
{
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  // Keepalive does not check a peer that still has bytes to acknowledge, such as the last ones of a handshake.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 9000);
}

/// Descriptors that a rank's links keep open: a socket for each connection, three for the loop of each link, and three
/// for the connection manager while it connects.
std::size_t files_of(std::size_t rank, const std::vector<LinkName>& links, const TcpOptions& options)
{
  constexpr std::size_t of_loop = 3;
  std::size_t files = of_loop;
  for (const auto& link : links) {
    if (link.from == rank || link.to == rank) files += of_loop + connections_of(link, options);
  }
  return files;
}

/// @throws EnvironmentError unless this process may open `wanted` more files, and a few for other purposes.
void require_files(std::size_t wanted)
{
  constexpr std::size_t for_others = 8;
  rlimit limit = {};
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (error || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto opened = static_cast<std::size_t>(std::distance(begin(open), end(open)));
  if (opened + wanted + for_others <= limit.rlim_cur) return;
  throw EnvironmentError(
      fmt::format("its connections need about {} open files in addition to the {} of this process, whose limit is {}; "
                  "raise it with: ulimit -n {}",
                  wanted + for_others, opened, limit.rlim_cur, std::bit_ceil(opened + wanted + for_others)));
}

const char* encryption(bool tls)
{
  return tls ? "TLS" : "plain text";
}

/// One rank's part in connecting all links.
class Connecting {
 public:
  Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
             const TcpOptions& options, TcpListener listener);

  std::map<LinkName, std::vector<Connection>> run(Clock::time_point deadline);

 private:
  struct Attempt {
    std::size_t to = 0;
    std::size_t number = 0;  ///< in the connection manager
    bool done = false;
  };

  void connect(const LinkName& link, std::size_t index);
  void drop_closed();
  bool all_are_connected();
  /// "" if the connection is accepted.
  std::string reason_to_reject(const Hello& hello) const;
  void keep(const Hello& hello, Connection connection);
  std::string missing_ranks() const;

  std::size_t rank_;
  const std::vector<Endpoint>& ranks_;
  const TcpOptions& options_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point checked_ = began_;  ///< for closed connections

  ConnectionManager connection_manager_;
  std::vector<Attempt> attempts_;
  std::map<LinkName, std::vector<Connection>> connections_;
  std::size_t missing_ = 0;  ///< connections
  std::string rejection_;
};

Connecting::Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                       const TcpOptions& options, TcpListener listener)
    : rank_(rank), ranks_(ranks), options_(options), connection_manager_(options.secret, options.tls)
{
  for (const auto& link : links) {
    if (link.from != rank && link.to != rank) continue;
    const auto [place, is_new] = connections_.try_emplace(link);
    ensure(is_new, "a link is named once");
    const std::size_t count = connections_of(link, options);
    place->second.resize(count);
    missing_ += count;
    for (std::size_t index = 0; link.from == rank && index < count; ++index) connect(link, index);
  }
  connection_manager_.listen(
      std::move(listener), [this](const Purpose& purpose) { return reason_to_reject(hello_of(purpose)); },
      [this](const Purpose& purpose, Connection connection) { keep(hello_of(purpose), std::move(connection)); });
}

void Connecting::connect(const LinkName& link, std::size_t index)
{
  Hello hello;
  hello.ranks = static_cast<std::uint32_t>(ranks_.size());
  hello.from = static_cast<std::uint32_t>(link.from);
  hello.to = static_cast<std::uint32_t>(link.to);
  hello.channel = link.channel;
  hello.connection = static_cast<std::uint32_t>(index);
  hello.connections = static_cast<std::uint32_t>(options_.connections);
  hello.tls = options_.tls ? 1 : 0;
  hello.first_step = options_.first_step;
  hello.run_id = padded<64>(options_.run_id);
  Purpose purpose = {};
  std::memcpy(purpose.data(), &hello, sizeof hello);
  const std::size_t place = attempts_.size();
  attempts_.push_back({.to = link.to});
  attempts_[place].number = connection_manager_.connect(
      ranks_[link.to], purpose,
      [this, hello, place](const Purpose&, Connection connection) {
        attempts_[place].done = true;
        keep(hello, std::move(connection));
      },
      [this, to = link.to](const std::string& reason) {
        if (!rejection_.empty()) return;
        rejection_ = fmt::format("rank {}: rejected by rank {} at {}: {}", rank_, to, text_of(ranks_[to]), reason);
      });
}

/// Forgets connections that their peers have closed: a rank that died may be started again.
void Connecting::drop_closed()
{
  checked_ = Clock::now();
  for (auto& [link, connections] : connections_) {
    for (std::size_t index = 0; index < connections.size(); ++index) {
      if (!connections[index].socket.is_open() || is_connected(connections[index])) continue;
      connections[index] = Connection();
      ++missing_;
      if (link.from == rank_) connect(link, index);
    }
  }
}

bool Connecting::all_are_connected()
{
  if (missing_ == 0) drop_closed();
  return missing_ == 0;
}

std::map<LinkName, std::vector<Connection>> Connecting::run(Clock::time_point deadline)
{
  // A rank that leaves at the very end has given up, and is not the one that all have waited for.
  const auto last_check = deadline - (deadline - began_) / 10;
  constexpr std::chrono::milliseconds pause(100);
  while (!all_are_connected()) {
    const bool in_time = connection_manager_.work(deadline);
    if (const auto now = Clock::now(); now < last_check && now - checked_ > pause) drop_closed();
    if (!rejection_.empty()) {
      const auto end = deadline_in(Seconds(1));
      while (connection_manager_.work(end)) continue;
      throw EnvironmentError(rejection_);
    }
    if (!in_time) {
      const auto option = options_.connect_option.empty() ? "" : fmt::format(" ({})", options_.connect_option);
      throw EnvironmentError(fmt::format("rank {}: still waiting after {}{} for {}{}", rank_,
                                         in_seconds(time_since(began_)), option, missing_ranks(),
                                         connection_manager_.unauthenticated()));
    }
  }
  return std::move(connections_);
}

void Connecting::keep(const Hello& hello, Connection connection)
{
  Connection& place = connections_.at(link_of(hello))[hello.connection];
  if (!place.socket.is_open()) --missing_;
  place = std::move(connection);
  start_keepalive(place.socket.number());
}

std::string Connecting::missing_ranks() const
{
  std::map<std::size_t, std::string> trouble_of_rank;
  for (const auto& [link, connections] : connections_) {
    const bool is_complete = std::all_of(connections.begin(), connections.end(),
                                         [](const Connection& connection) { return connection.socket.is_open(); });
    if (link.to == rank_ && !is_complete) trouble_of_rank[link.from] = "has not connected";
  }
  for (const auto& attempt : attempts_) {
    if (attempt.done) continue;
    trouble_of_rank[attempt.to] =
        fmt::format("{}: {}", text_of(ranks_[attempt.to]), connection_manager_.trouble(attempt.number));
  }
  std::string text;
  for (const auto& [rank, trouble] : trouble_of_rank) {
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, trouble);
  }
  return text;
}

std::string Connecting::reason_to_reject(const Hello& hello) const
{
  const Hello ours;
  if (hello.mark != ours.mark) return "it accepts only connections of links";
  if (hello.version != ours.version) {
    return fmt::format("its protocol has version {}, not {}", ours.version, hello.version);
  }
  if (hello.run_id != padded<64>(options_.run_id)) {
    return "it belongs to another run; give all ranks the same plan, data and options, and each run its own ports";
  }
  if (hello.first_step != options_.first_step) {
    return fmt::format("it begins at step {}, not {}", options_.first_step, hello.first_step);
  }
  if (hello.ranks != ranks_.size()) return fmt::format("it has {} ranks, not {}", ranks_.size(), hello.ranks);
  if (hello.to != rank_) return fmt::format("it is rank {}", rank_);
  if (hello.connections != options_.connections) {
    return fmt::format("it uses --flows {}, not {}", options_.connections, hello.connections);
  }
  if ((hello.tls != 0) != options_.tls) {
    return fmt::format("it uses {}, not {}; give --tls or --plain-text to all ranks or none", encryption(options_.tls),
                       encryption(!options_.tls));
  }
  const auto found = connections_.find(link_of(hello));
  if (found == connections_.end() || hello.connection >= found->second.size()) {
    return fmt::format("it expects no connection {} of channel {} from rank {}", hello.connection, hello.channel,
                       hello.from);
  }
  return is_connected(found->second[hello.connection]) ? fmt::format("rank {} is already connected", hello.from) : "";
}

}  // namespace

std::map<LinkName, std::vector<Connection>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                          const std::vector<LinkName>& links, const TcpOptions& options,
                                                          TcpListener listener, Clock::time_point deadline)
{
  require_files(files_of(rank, links, options));
  return Connecting(rank, ranks, links, options, std::move(listener)).run(deadline);
}

void stop_keepalive(int socket)
{
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 0);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
}

void allow_all_descriptors()
{
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace isobar::exec
