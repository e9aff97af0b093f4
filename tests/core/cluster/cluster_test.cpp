#include "core/cluster/cluster.hpp"

#include "core/errors.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar {
namespace {

using testing::ThrowsMessage;

TEST(WithoutDevices, KeepsTheOthersWithTheirPaths)
{
  std::mt19937_64 random(1);
  auto whole = testing_support::random_cluster(random, 5, 1e9);
  whole.data_server = "server";
  std::vector<Path> paths;
  for (int i = 0; i < 36; ++i) paths.push_back({Seconds(i), BytesPerSecond(1 + i)});
  whole.network = std::make_shared<const MatrixNetwork>(6, paths);
  const auto rest =
      without_devices(whole, {whole.devices[3].name, whole.devices[0].name, whole.devices[3].name}, "--without");
  const std::vector<std::size_t> kept = {1, 2, 4, 5};
  ASSERT_EQ(rest.devices.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rest.devices[i].name, whole.devices[kept[i]].name);
  EXPECT_EQ(rest.data_server, whole.data_server);
  for (std::size_t from = 0; from < 4; ++from) {
    for (std::size_t to = 0; to < 4; ++to) {
      if (from == to) continue;
      EXPECT_EQ(rest.path(from, to).latency, whole.path(kept[from], kept[to]).latency);
      EXPECT_EQ(rest.network->links(from, to), whole.network->links(kept[from], kept[to]));
      const auto link = rest.network->links(from, to).front();
      EXPECT_EQ(rest.network->path_with(from, to, link, 2).bandwidth, 2 * whole.path(kept[from], kept[to]).bandwidth);
    }
  }
}

TEST(WithoutDevices, NamesTheExistingDevices)
{
  const auto whole = testing_support::cluster({1, 2});
  EXPECT_THAT([&] { without_devices(whole, {"d2"}, "--without"); },
              ThrowsMessage<InputError>("--without: \"d2\" is not a device of cluster; its devices are d0, d1"));
  EXPECT_THAT(
      [&] {
        without_devices(whole, {"d1", "d0"}, "--without");
      },
      ThrowsMessage<InputError>("--without: leaves out every device of cluster"));
}

}  // namespace
}  // namespace isobar
