#include "core/base/files.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/layer_time.hpp"
#include "core/model/dtype.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/separated.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>

namespace isobar::compute::grouped_products_test {
namespace {

TEST(GroupedProducts, TakeThoseOfTheirTableWithTheTrafficOfTheirMatrices)
{
  const std::string text = read_file(ISOBAR_SOURCE_DIR "/results/fidelity/operators/grouped_products.csv");
  const DeviceConstants& device = device_constants("B200-SXM");
  std::size_t rows = 0;
  double squares = 0;
  double alone = 0;  // without the traffic
  for (const auto line : texts_between(text, '\n')) {
    const auto cells = texts_between(line, ',');
    if (cells.size() < 9 || cells[0] != "B200-SXM") continue;
    const auto number = [&](std::size_t column) { return std::stod(std::string(cells[column])); };
    const double groups = number(1);
    const double m = number(2);
    const double n = number(3);
    const double k = number(4);
    const bool is_weight = cells[6] == "bwd_grad_w";
    const auto layout = is_weight ? ProductLayout::NT : ProductLayout::TN;
    const double product = device.product_time(DType::BFloat16, false, m, n, k, false).value;
    const double traffic =
        (bytes_of_matrix(n * k, layout, DType::BFloat16) / (device.memory_bandwidth * copy_fraction)).value;
    const double measured = number(8);
    EXPECT_NEAR(std::log(groups * (product + traffic) / measured), 0, std::log(2)) << line;
    squares += std::pow(std::log(groups * (product + traffic) / measured), 2);
    alone += std::pow(std::log(groups * product / measured), 2);
    ++rows;
  }
  ASSERT_EQ(rows, 108U);
  EXPECT_NEAR(std::sqrt(squares / 108), 0.195, 0.005);
  EXPECT_GT(std::sqrt(alone / 108), 0.6);
}

}  // namespace
}  // namespace isobar::compute::grouped_products_test
