#include "exec/links/side_channel.hpp"

#include "core/base/clock.hpp"
#include "exec/links/text_message.hpp"

#include <array>
#include <cstdint>
#include <future>
#include <limits>
#include <span>

namespace isobar::exec {

namespace {

constexpr std::uint32_t channel = first_narrow_channel;
constexpr int round_trips = 21;

double clock_now()
{
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<LinkName> SideChannel::links(std::size_t ranks)
{
  std::vector<LinkName> links;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    links.push_back({rank, 0, channel});
    links.push_back({0, rank, channel});
  }
  return links;
}

void SideChannel::answer_clock_requests(std::size_t other)
{
  for (int i = 0; i < round_trips; ++i) {
    world_->link({other, 0, channel})
        .receive([](TcpLink::Bytes) { return std::vector<std::span<std::byte>>(); }, deadline_);
    const double answer = clock_now();
    world_->link({0, other, channel}).send({}, std::array{std::as_bytes(std::span(&answer, 1))}, deadline_);
  }
}

Seconds SideChannel::clock_offset()
{
  double answer = 0;
  const auto room = [&](TcpLink::Bytes) { return std::vector{std::as_writable_bytes(std::span(&answer, 1))}; };
  if (rank_ == 0) {
    std::vector<std::future<void>> answering;
    for (std::size_t other = 1; other < ranks_; ++other) {
      answering.push_back(std::async(std::launch::async, [this, other] { answer_clock_requests(other); }));
    }
    for (auto& done : answering) done.get();
    return Seconds(0);
  }
  Seconds offset;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < round_trips; ++i) {
    const double asked = clock_now();
    world_->link({rank_, 0, channel}).send({}, {}, deadline_);
    world_->link({0, rank_, channel}).receive(room, deadline_);
    const double answered = clock_now();
    if (answered - asked >= least) continue;
    least = answered - asked;
    offset = Seconds(answer - (asked + answered) / 2);
  }
  return offset;
}

std::vector<std::string> SideChannel::gather(const std::string& text, Seconds deadline)
{
  if (rank_ != 0) {
    send_text(world_->link({rank_, 0, channel}), text, deadline);
    return {};
  }
  std::vector<std::string> texts = {text};
  for (std::size_t other = 1; other < ranks_; ++other) {
    texts.push_back(receive_text(world_->link({other, 0, channel}), deadline));
  }
  return texts;
}

}  // namespace isobar::exec
