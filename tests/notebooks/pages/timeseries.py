# A time series with pandas: cleaning, resampling, lags, a linear model.
# %%
import numpy as np
import pandas as pd

pd.set_option("display.max_rows", 8)
pd.options.display.float_format = "{:.3f}".format
rng = np.random.default_rng(3)
# %%
days = pd.date_range("2024-01-01", periods=90, freq="D", tz="UTC")
df = pd.DataFrame({"sales": rng.poisson(20, 90) + np.arange(90) * 0.1, "shop": list("abc") * 30}, index=days)
df.head()
# %%
df.loc[df.index[5:8], "sales"] = np.nan
df["shop"] = df["shop"].astype("category")
df.info(memory_usage=False)
# %%
df.describe()
# %%
df["sales"] = df["sales"].interpolate()
df.isna().sum()
# %%
weekly = df["sales"].resample("W").mean()
weekly
# %%
by_shop = df.groupby("shop", observed=True)["sales"].agg(["mean", "max"])
by_shop
# %%
for lag in (1, 7):
    df[f"lag_{lag}"] = df["sales"].shift(lag)
df.columns, df.shape
# %%
train = df.dropna().iloc[:-14]
test = df.iloc[-14:]
A = np.c_[np.ones(len(train)), train[["lag_1", "lag_7"]]]
coef, residuals, rank, _ = np.linalg.lstsq(A, train["sales"], rcond=None)
coef.round(3), rank
# %%
predict = lambda frame: np.c_[np.ones(len(frame)), frame[["lag_1", "lag_7"]]] @ coef
errors = test["sales"] - predict(test)
errors.abs().mean()
# %%
grouped = df.groupby("shop", observed=True)
grouped.size()
# %%
pivot = df.assign(week=df.index.isocalendar().week).pivot_table(values="sales", index="week", columns="shop", observed=True)
pivot
# %%
rng.integers(0, 100, 5), rng.normal(size=2).round(3)
# %%
df.index.tz, df["shop"].cat.categories, df.query("sales > 30 and shop == 'a'").shape
