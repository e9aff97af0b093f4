#include "core/steps/step_player.hpp"

#include <algorithm>
#include <deque>

namespace isobar {

namespace {

class StepPlayer {
 public:
  StepPlayer(ChainSchedule schedule, std::uint64_t microbatches, PlayedTransfer input,
             const std::vector<PlayedStage>& stages)
      : schedule_(schedule), microbatches_(microbatches), input_(input), stages_(stages), players_(stages.size())
  {
  }

  double play()
  {
    for (std::size_t i = stages_.size(); i-- > 0;) awake_.push_back(i);
    while (!awake_.empty()) {
      const std::size_t i = awake_.back();
      awake_.pop_back();
      while (advance(i)) {
      }
    }
    double end = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) end = std::max(end, players_[i].now + stages_[i].update);
    return end;
  }

 private:
  /// Messages over one path, one after the other. The first byte of each arrives a latency after it is sent, but not
  /// before the last byte of the previous message.
  struct Stream {
    double arrived = 0;  // when all messages so far have

    double send(double ready, const PlayedTransfer& transfer)
    {
      const double first_byte = std::max(ready + transfer.latency, arrived);
      arrived = first_byte + transfer.data;
      return arrived;
    }
  };

  struct Player {
    std::uint64_t forwards = 0;   // done
    std::uint64_t backwards = 0;  // done
    double now = 0;
    std::deque<double> activations;  // arrival times of waiting messages
    std::deque<double> gradients;
    Stream outputs;
    Stream sent_gradients;
  };

  /// The schedule's rule: whether a stage forwards next, from what it has done so far.
  bool forwards_next(std::size_t i) const
  {
    const Player& player = players_[i];
    if (player.forwards == microbatches_) return false;
    const std::uint64_t ahead = player.forwards - player.backwards;
    switch (schedule_) {
      case ChainSchedule::Sequential:
        return ahead == 0;
      case ChainSchedule::GPipe:
        return true;
      case ChainSchedule::OneForwardOneBackward:
        return ahead < stages_.size() - i;
    }
    return true;
  }

  /// Does one piece of work of the stage; false if it is done or has to wait.
  bool advance(std::size_t i)
  {
    Player& player = players_[i];
    if (player.backwards == microbatches_) return false;
    return forwards_next(i) ? forward(i, player) : backward(i, player);
  }

  bool forward(std::size_t i, Player& player)
  {
    if (i == 0) {
      fetch_input(player);
    } else if (player.activations.empty()) {
      return false;
    }
    player.now = std::max(player.now, player.activations.front()) + stages_[i].forward;
    player.activations.pop_front();
    ++player.forwards;
    if (i == 0) ends_of_forwards_.push_back(player.now);
    if (i + 1 < stages_.size()) {
      players_[i + 1].activations.push_back(player.outputs.send(player.now, stages_[i].output));
      awake_.push_back(i + 1);
    }
    return true;
  }

  bool backward(std::size_t i, Player& player)
  {
    if (i + 1 < stages_.size()) {
      if (player.gradients.empty()) return false;
      player.now = std::max(player.now, player.gradients.front());
      player.gradients.pop_front();
    }
    player.now += stages_[i].backward;
    ++player.backwards;
    if (i > 0) {
      players_[i - 1].gradients.push_back(player.sent_gradients.send(player.now, stages_[i].gradient));
      awake_.push_back(i - 1);
    }
    return true;
  }

  /// Sends the next input, once one of its two buffers is free.
  void fetch_input(Player& first)
  {
    double free_since = 0;
    if (first.forwards >= 2) {
      free_since = ends_of_forwards_.front();
      ends_of_forwards_.pop_front();
    }
    first.activations.push_back(inputs_.send(free_since, input_));
  }

  ChainSchedule schedule_;
  std::uint64_t microbatches_;
  PlayedTransfer input_;
  const std::vector<PlayedStage>& stages_;
  std::vector<Player> players_;
  std::vector<std::size_t> awake_;  // stages that may continue
  std::deque<double> ends_of_forwards_;
  Stream inputs_;
};

}  // namespace

double play_step(ChainSchedule schedule, std::uint64_t microbatches, PlayedTransfer input,
                 const std::vector<PlayedStage>& stages)
{
  return StepPlayer(schedule, microbatches, input, stages).play();
}

}  // namespace isobar
