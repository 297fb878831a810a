"""Arguments of generators that make small graphs."""

SMALL = {
    "planted_partition": {"num_nodes": 60, "num_classes": 3},
    "rmat": {"num_nodes": 50, "num_edges": 200},
    "shop": {"num_users": 40, "num_items": 20, "num_purchases": 100},
    "houses": {"num_houses": 30},
    "ratings": {"num_users": 40, "num_films": 20, "num_ratings": 200},
    "likes": {"num_users": 40, "num_films": 20, "num_likes": 200, "num_series": 5},
    "noise": {"num_nodes": 30, "num_targets": 20, "num_links": 50, "num_hard_negatives": 9},
}
