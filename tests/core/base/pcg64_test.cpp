#include "core/base/pcg64.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace isobar::pcg64_test {
namespace {

/// The rows of tests/instances/sky_slowdowns.csv, cell by cell, without comments and header.
std::vector<std::vector<std::string>> published_slowdowns()
{
  std::ifstream file(ISOBAR_SOURCE_DIR "/tests/instances/sky_slowdowns.csv");
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.rfind("rank", 0) == 0) continue;
    std::istringstream cells(line);
    std::vector<std::string> row;
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
    rows.push_back(row);
  }
  return rows;
}

TEST(Pcg64, DrawsThePublishedStreamsBitForBit)
{
  const auto rows = published_slowdowns();
  ASSERT_EQ(rows.size(), 65u);
  Pcg64 memory(22);
  Pcg64 speed(32);
  Pcg64 sleep(35);
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 10u);
    EXPECT_EQ(memory.uniform(), std::strtod(row[8].c_str(), nullptr)) << "u22, rank " << row[0];
    EXPECT_EQ(speed.uniform(), std::strtod(row[9].c_str(), nullptr)) << "u32, rank " << row[0];
    EXPECT_EQ(1 + sleep.below(6), std::strtoul(row[7].c_str(), nullptr, 10)) << "i35, rank " << row[0];
  }
}

/// Drawn with numpy 2.4.6: default_rng(seed).bit_generator.random_raw(2), and from fresh generators .random(3),
/// .integers(0, 1000, 6), .integers(0, 3000000000, 4). The last rejects three draws in ten.
struct NumpyDraws {
  std::uint64_t seed;
  std::vector<std::uint64_t> raw;
  std::vector<double> uniform;
  std::vector<std::uint32_t> below_1000;
  std::vector<std::uint32_t> below_3000000000;
};

const std::vector<NumpyDraws> numpy_draws = {
    {0,
     {0xa30febcfd9c2825f, 0x4510bdf882d9d721},
     {0x1.461fd79fb3850p-1, 0x1.1442f7e20b674p-2, 0x1.4fa7b529d9bd0p-5},
     {850, 636, 511, 269, 307, 40},
     {2551872677, 1910885061, 1533409439, 809360140}},
    {1,
     {0x8306bdf37922e4ff, 0xf35196bbc152a866},
     {0x1.060d7be6f245cp-1, 0x1.e6a32d7782a55p-1, 0x1.273d27b04760cp-3},
     {473, 511, 755, 950, 34, 144},
     {1535464873, 2851391088, 104557657, 2845948340}},
    {12345,
     {0x3a32b18db2ffc19d, 0x51171315c9e4c4de},
     {0x1.d1958c6d97fe0p-3, 0x1.445c4c5727930p-2, 0x1.984049046889dp-1},
     {699, 227, 788, 316, 204, 797},
     {2097645094, 682008066, 2365940964, 950275018}},
    {4294967295,
     {0x407f5fa930d8fd9f, 0x3814b22eb9684802},
     {0x1.01fd7ea4c363ep-2, 0x1.c0a59175cb424p-3, 0x1.262df73ba3636p-2},
     {190, 251, 724, 219, 909, 287},
     {657197388, 2728677138, 861854160, 640068962}},
    {4294967296,
     {0xe3c5ebe285ac1625, 0x8ea09968fe31dbcc},
     {0x1.c78bd7c50b582p-1, 0x1.1d4132d1fc63bp-1, 0x1.9a109ff09b1bdp-1},
     {522, 889, 992, 557, 302, 800},
     {1566471244, 2669216373, 2978844844, 1671414149}},
    {0xdeadbeefcafef00d,
     {0x13c81324a32ac399, 0x3c6abd553a9eb24f},
     {0x1.3c81324a32ac0p-4, 0x1.e355eaa9d4f58p-3, 0x1.b1e73aeda4430p-4},
     {637, 77, 228, 236, 852, 105},
     {2557809502, 2212937486, 868585735, 2924511966}},
    {0xffffffffffffffff,
     {0xae163a7a8c47568f, 0xd86659f5f3382359},
     {0x1.5c2c74f5188eap-1, 0x1.b0ccb3ebe6704p-1, 0x1.e52b195bc2d00p-8},
     {547, 680, 950, 845, 358, 7},
     {1643890599, 2040080036, 1075324467, 22209244}},
};

TEST(Pcg64, DrawsWhatNumpyDrawsFromAnySeed)
{
  for (const auto& numpy : numpy_draws) {
    Pcg64 raw(numpy.seed);
    for (const auto expected : numpy.raw) EXPECT_EQ(raw.next(), expected) << "seed " << numpy.seed;
    Pcg64 uniform(numpy.seed);
    for (const auto expected : numpy.uniform) EXPECT_EQ(uniform.uniform(), expected) << "seed " << numpy.seed;
    Pcg64 small(numpy.seed);
    for (const auto expected : numpy.below_1000) EXPECT_EQ(small.below(1000), expected) << "seed " << numpy.seed;
    Pcg64 large(numpy.seed);
    for (const auto expected : numpy.below_3000000000) {
      EXPECT_EQ(large.below(3'000'000'000), expected) << "seed " << numpy.seed;
    }
  }
}

TEST(Pcg64, RefusesABoundBelowTwo)
{
  Pcg64 random(1);
  EXPECT_THROW(random.below(0), std::logic_error);
  EXPECT_THROW(random.below(1), std::logic_error);
}

}  // namespace
}  // namespace isobar::pcg64_test
