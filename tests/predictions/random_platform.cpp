#include "tests/predictions/random_case.hpp"
#include "tests/support/shared_nodes.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::predictions {

namespace {

using sim::names;
using sim::PlatformFile;

class PlatformMaker {
 public:
  PlatformMaker(std::mt19937_64& random, const PlatformNeeds& needs) : random_(random), needs_(needs) {}

  RandomPlatform make()
  {
    if (needs_.has_machines) {
      add_machines();
    } else {
      add_network();
    }
    RandomPlatform result = {file_.load(), {}};
    result.cluster = result.platform.cluster();
    if (needs_.has_interference) {
      for (Device& device : result.cluster.devices) {
        device.interference = 1 + static_cast<double>(random_() % 3) / 4;
        device.collective_start = Seconds(static_cast<double>(random_() % 3) / 100);
      }
    }
    return result;
  }

 private:
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  std::string bandwidth() { return fmt::format("{}kBps", 1000 * (5 + random_() % 500)); }
  std::string latency() { return random_() % 5 == 0 ? "0s" : fmt::format("{}us", 1 + random_() % 100000); }
  std::string policy() { return random_() % 4 == 0 ? "sharing_policy=\"FATPIPE\"" : ""; }

  void add_network()
  {
    if (random_() % 3 == 0) return sim::shared_nodes(file_, random_, needs_.devices, needs_.has_data_server);
    std::vector<std::string> hosts = names(needs_.devices);
    for (std::size_t i = 0; i < hosts.size(); ++i) add_device(hosts[i], i);
    if (needs_.has_data_server) {
      hosts.emplace_back("data");
      file_.data_server("data");
    }
    if (random_() % 2 == 0) {
      join_pairs(hosts);
    } else {
      join_by_sites(hosts);
    }
  }

  void add_device(const std::string& name, std::size_t index, const std::string& props = "")
  {
    file_.device(name, fmt::format("{}Gf", uniform(0.5, 5)), "",
                 fmt::format("<prop id=\"site\" value=\"s{}\"/>{}", index % 2, props));
  }

  /// Each pair has a link of its own in each direction.
  void join_pairs(const std::vector<std::string>& hosts)
  {
    for (const auto& from : hosts) {
      for (const auto& to : hosts) {
        if (from == to) continue;
        const std::string link = fmt::format("{}-{}", from, to);
        file_.link(link, bandwidth(), latency(), policy());
        file_.route(from, to, {link});
      }
    }
  }

  /// Each host has a link up and one down; a trunk in each direction is between the sites.
  void join_by_sites(const std::vector<std::string>& hosts)
  {
    for (const auto& host : hosts) {
      file_.link("up " + host, bandwidth(), latency());
      file_.link("down " + host, bandwidth(), latency());
    }
    file_.link("trunk 0", bandwidth(), latency(), policy());
    file_.link("trunk 1", bandwidth(), latency());
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      for (std::size_t j = 0; j < hosts.size(); ++j) {
        if (i == j) continue;
        std::vector<std::string> links = {"up " + hosts[i]};
        if (i % 2 != j % 2) links.push_back(fmt::format("trunk {}", i % 2));
        links.push_back("down " + hosts[j]);
        file_.route(hosts[i], hosts[j], links);
      }
    }
  }

  void add_machines()
  {
    const std::vector<std::string> hosts = names(needs_.devices);
    const std::size_t per_machine = 1 + random_() % 3;
    const bool has_switch = random_() % 2 == 0;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const std::string machine = fmt::format("m{}", i / per_machine);
      if (i % per_machine == 0) add_machine(machine);
      add_device(hosts[i], i, fmt::format("<prop id=\"host\" value=\"{}\"/>", machine));
      for (const bool is_in : {true, false}) {
        const std::string own = fmt::format("{} {}", is_in ? "in" : "out", hosts[i]);
        file_.link(own, bandwidth(), fmt::format("{}us", 1 + random_() % 10000));
        std::vector<std::string> links = {own};
        if (has_switch) links.insert(is_in ? links.begin() : links.end(), "switch " + machine);
        file_.route(is_in ? machine : hosts[i], is_in ? hosts[i] : machine, links);
      }
    }
    join_pairs(hosts);
  }

  void add_machine(const std::string& name)
  {
    file_.link("switch " + name, bandwidth(), "1us");
    const double busy = uniform(0.2, 2);
    const std::string speed =
        random_() % 2 == 0 ? fmt::format("{}Gf", busy) : fmt::format("{}Gf,{}Gf", busy, busy * uniform(1, 3));
    const std::string disk =
        fmt::format("<disk id=\"nvme {}\" read_bw=\"{}\" write_bw=\"{}\"><prop id=\"capacity\" value=\"1 TB\"/></disk>",
                    name, bandwidth(), bandwidth());
    file_.machine(name, speed, disk, fmt::format("core=\"{}\"", 1 + random_() % 2));
  }

  std::mt19937_64& random_;
  PlatformNeeds needs_;
  PlatformFile file_;
};

}  // namespace

RandomPlatform random_platform(std::mt19937_64& random, const PlatformNeeds& needs)
{
  return PlatformMaker(random, needs).make();
}

}  // namespace isobar::predictions
