#pragma once

#include "core/base/files.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "tests/support/instances.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isobar::testing_support {

/// The rows of a published table of DT-FM's cases that belong to one case, without its column.
inline std::vector<std::vector<std::string>> dtfm_rows(const std::string& name, std::vector<std::string> columns,
                                                       std::size_t number)
{
  const auto file = std::filesystem::path(ISOBAR_SOURCE_DIR) / "platforms/data" / name;
  columns.insert(columns.begin(), "case");
  FaultList faults(file.string());
  const auto table = CsvTable::by_hand(read_file(file), columns, {}, faults);
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : table.rows()) {
    if (row.cells.front() == std::to_string(number)) rows.emplace_back(row.cells.begin() + 1, row.cells.end());
  }
  return rows;
}

/// The 64 devices of a published case of DT-FM, 0 to 5, with plenty of memory.
inline Cluster dtfm_case(std::size_t number)
{
  std::map<std::string, std::size_t> sites;
  std::vector<std::size_t> site_of;
  Cluster result;
  result.name = "dtfm" + std::to_string(number);
  for (const auto& row : dtfm_rows("dtfm_case_sites.csv", {"site", "first_device", "devices"}, number)) {
    const std::size_t site = sites.emplace(row[0], sites.size()).first->second;
    for (int i = 0; i < std::stoi(row[2]); ++i) {
      site_of.push_back(site);
      result.devices.push_back(device("d" + std::to_string(site_of.size() - 1), 1e13, 1e11));
    }
  }
  std::map<std::pair<std::size_t, std::size_t>, Path> links;
  for (const auto& row : dtfm_rows("dtfm_case_links.csv", {"a", "b", "delay_ms", "gbit_s"}, number)) {
    const Path path{Seconds(std::stod(row[2]) / 1e3), BytesPerSecond(std::stod(row[3]) * 1e9 / 8)};
    links[{sites.at(row[0]), sites.at(row[1])}] = links[{sites.at(row[1]), sites.at(row[0])}] = path;
  }
  std::vector<Path> paths;
  for (const std::size_t from : site_of) {
    for (const std::size_t to : site_of) paths.push_back(links.at({from, to}));
  }
  result.network = std::make_shared<MatrixNetwork>(site_of.size(), std::move(paths));
  return result;
}

/// What DT-FM's cases train, and the goal that counts its published transfers.
inline Workload dtfm_workload()
{
  return read_workload(std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads/dtfm_gpt3_1.3b.yaml");
}
inline Goal dtfm_goal(std::uint64_t microbatches = 160)
{
  Goal goal = Goal::with_defaults(Objective::DtFm);
  goal.microbatches = microbatches;
  return goal;
}

/// A small problem of DT-FM's cost: sites of different sizes, or all devices different.
struct SmallDtFmProblem {
  explicit SmallDtFmProblem(std::mt19937_64& random)
  {
    const std::size_t kind = random() % 3;
    if (kind == 0) {
      devices = random_cluster(random, 3 + random() % 4, 1e9);
    } else {
      devices = random_sites(random, 1 + kind, 2 + random() % (kind == 1 ? 3 : 1), 1e9);
      while (devices.devices.size() > 3 && random() % 2 == 0) devices.devices.pop_back();
      keep_paths(devices);
    }
    devices.data_server.reset();
    stages = 1 + random() % std::min<std::size_t>(4, devices.devices.size());
    replicas = 1 + random() % (devices.devices.size() / stages);
    workload = random_chain(random, stages + random() % 3);
    workload.memory_model = MemoryModel::Training;
    for (auto& layer : workload.layers) ++layer.parameters;
    goal = dtfm_goal(replicas * (1 + random() % 3));
  }

  Workload workload;
  Cluster devices;
  Goal goal;
  std::size_t stages = 1;
  std::size_t replicas = 1;

 private:
  /// Fits the network to devices that were removed.
  static void keep_paths(Cluster& cluster)
  {
    const std::size_t size = cluster.devices.size();
    std::vector<Path> paths;
    for (std::size_t i = 0; i <= size; ++i) {
      for (std::size_t j = 0; j <= size; ++j) paths.push_back(cluster.path(i, j));
    }
    cluster.network = std::make_shared<MatrixNetwork>(size + 1, std::move(paths));
  }
};

}  // namespace isobar::testing_support
